/* SPDX-License-Identifier: Apache-2.0 */
/* test_page.c -- the clock files that the arbiter writes from its model, as the shim reads them. */
#include "arbiter/page.h"
#include "check.h"
#include "lending_scene.h"

/* xorshift, the same in each run */
static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}

static struct clock_file pages[TENANTS];

static void open_pages(void)
{
    memset(pages, 0, sizeof(pages));
    for (unsigned i = 0; i < TENANTS; i++) {
        pages[i].header = (struct region_header) {
            .magic = CLOCK_MAGIC, .layout = CLOCK_LAYOUT, .size = CLOCK_PAGE};
        pages[i].newest = ARRAY_SIZE(pages[i].samples) - 1;
    }
}

/* Is each step between points plausible: no faster than time, and no slower than a 64th of it? */
static int points_can_be_true(const struct lending_container *tenant, struct clock_sample last)
{
    for (unsigned i = 0; i < tenant->point_count; i++) {
        const struct clock_sample *point = &tenant->points[i];
        uint64_t passed = point->at_ns - last.at_ns;
        uint64_t grown = point->share_ns - last.share_ns;

        if (point->at_ns < last.at_ns || point->share_ns < last.share_ns || grown > passed + 1 ||
            grown < passed / 64)
            return 0;
        last = *point;
    }
    return tenant->share_ns == last.share_ns && last.at_ns == scene.lending.now_ns;
}

/* A process begins, finishes some of it or all, or says nothing; some end and others begin. */
static void live(unsigned tenant, unsigned lane, uint64_t most, uint64_t *state)
{
    struct usage_work *work = &scene.work[tenant][lane];
    uint32_t ahead = work->begun - work->finished;

    switch (draw(state, 8)) {
    case 0:
        break;
    case 1:
        work->finished = work->begun;
        break;
    case 2:
        work->begun += (uint32_t) draw(state, 8 * most);
        break;
    default:
        work->finished += (uint32_t) draw(state, ahead + 1);
        if (ahead < 16 * most)
            work->begun += (uint32_t) draw(state, most);
    }
    if (!draw(state, 200)) {
        scene.lanes[tenant][lane] = (struct lending_process) {0};
        *work = (struct usage_work) {0, 0};
    }
}

static void play(uint64_t seed, unsigned lanes, uint64_t shortest_ns)
{
    static const uint64_t longest[] = {TICK_NS / 20, TICK_NS, 2 * TICK_NS, 12 * TICK_NS};
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15);
    struct clock_view views[TENANTS] = {{0}};
    int impossible = 0, unbelievable = 0, moved = 0;

    set_scene(TENANTS);
    open_pages();
    for (unsigned i = 0; i < TENANTS; i++)
        scene.tenants[i].lane_count = 1 + (unsigned) draw(&state, lanes);
    for (int tick = 0; tick < 1500; tick++) {
        uint64_t time = shortest_ns + draw(&state, longest[draw(&state, ARRAY_SIZE(longest))]);
        struct clock_sample before[TENANTS];

        for (unsigned i = 0; i < TENANTS; i++) {
            struct lending_container *tenant = &scene.tenants[i];

            for (unsigned lane = 0; lane < tenant->lane_count; lane++)
                live(i, lane, 1 + 2 * TICK_NS / UNIT / (draw(&state, 2) ? 1 : lanes), &state);
            tenant->ahead_ns = 0; /* no container claims too much */
            tenant->bought_ns = scene.lending.now_ns + draw(&state, time + 1);
            before[i].at_ns = scene.lending.now_ns;
            before[i].share_ns = tenant->share_ns ? tenant->share_ns : scene.lending.now_ns;
        }
        pass(time);
        for (unsigned i = 0; i < TENANTS; i++) {
            page_write(&pages[i], &scene.lending, &scene.tenants[i]);
            clock_evaluate(&views[i], &pages[i], scene.lending.now_ns);
            impossible += !points_can_be_true(&scene.tenants[i], before[i]);
            unbelievable += !views[i].valid;
            moved += scene.tenants[i].taken_ns > 0;
        }
    }
    CHECK_EQUAL("each point can be true", impossible, 0);
    CHECK_EQUAL("each page is believed", unbelievable, 0);
    CHECK("something was taken off", moved > 100);
}

static void page_tells_whether_others_have_work(void)
{
    set_scene(2);
    open_pages();
    give(0, 3000 * UNIT);
    pass(1000 * UNIT);
    page_write(&pages[0], &scene.lending, &scene.tenants[0]);
    page_write(&pages[1], &scene.lending, &scene.tenants[1]);
    CHECK("the only one with work", pages[0].spared);
    CHECK("not the other", !pages[1].spared);
    give(1, 3000 * UNIT);
    pass(1000 * UNIT);
    page_write(&pages[0], &scene.lending, &scene.tenants[0]);
    CHECK("until that has some", !pages[0].spared);
    pass(8000 * UNIT);
    pass(1000 * UNIT);
    page_write(&pages[0], &scene.lending, &scene.tenants[0]);
    CHECK("no container has work", pages[0].spared);
    page_write(&pages[0], &scene.lending, NULL);
    CHECK("the device's own page has no container", !pages[0].spared);
}

static void random_schedules_keep_clocks_plausible(void)
{
    static const unsigned lanes[] = {1, 2, 5, 15};

    for (uint64_t seed = 1; seed <= 8; seed++)
        play(seed, lanes[seed % ARRAY_SIZE(lanes)], 1);
    for (uint64_t seed = 1; seed <= 4; seed++)
        play(seed, 100, TICK_NS / 5);
}

int main(void)
{
    page_tells_whether_others_have_work();
    random_schedules_keep_clocks_plausible();
    return check_end();
}
