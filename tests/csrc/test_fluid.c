/* SPDX-License-Identifier: Apache-2.0 */
/* test_fluid.c -- a device's time as several processes have it, tick by tick, and what is lent. */
#include "arbiter/fluid.h"
#include "check.h"

#include <stddef.h>

#define START   UINT64_C(5000000000)
#define TICK_NS UINT64_C(5000000)
#define UNIT    UINT64_C(1024)
#define PERCENT (CLOCK_WHOLE / 100)
#define TENANTS 4
#define LANES   600

/* A device, and on it containers of one process each unless a test says otherwise. */
struct scene {
    struct fluid fluid;
    struct fluid_tenant tenants[TENANTS];
    struct fluid_tenant *order[TENANTS];
    struct fluid_lane lanes[TENANTS][LANES];
    struct usage_work work[TENANTS][LANES];
    unsigned count;
};

static struct scene scene;

static void set_scene(unsigned count)
{
    memset(&scene, 0, sizeof(scene));
    scene.count = count;
    fluid_start(&scene.fluid, START);
    for (unsigned i = 0; i < count; i++) {
        scene.tenants[i] = (struct fluid_tenant) {
            .lanes = scene.lanes[i], .lane_count = 1, .own = 25 * PERCENT, .limit = 25 * PERCENT};
        scene.order[i] = &scene.tenants[i];
        fluid_see(&scene.lanes[i][0], scene.work[i][0]);
    }
}

static void give(unsigned tenant, uint64_t begun_ns)
{
    scene.work[tenant][0].begun += (uint32_t) (begun_ns / UNIT);
}

static void finish(unsigned tenant, uint64_t finished_ns)
{
    scene.work[tenant][0].finished += (uint32_t) (finished_ns / UNIT);
}

/* How far the first container's clock goes in *time*. */
static uint64_t pass(uint64_t time)
{
    uint64_t before = scene.tenants[0].share_ns ? scene.tenants[0].share_ns : scene.fluid.now_ns;

    for (unsigned i = 0; i < scene.count; i++) {
        for (unsigned lane = 0; lane < scene.tenants[i].lane_count; lane++)
            fluid_see(&scene.lanes[i][lane], scene.work[i][lane]);
    }
    fluid_tick(&scene.fluid, scene.order, scene.count, scene.fluid.now_ns + time);
    return scene.tenants[0].share_ns - before;
}

static void level_is_that_of_processor_sharing(void)
{
    static const struct {
        const char *sentence;
        uint64_t backlog[TENANTS]; /* in units of 1024 ns */
        uint64_t grown;            /* in 10000 units */
    } rows[] = {
        {"nobody has work: as if alone", {0, 0, 0, 0}, 10000},
        {"one that is alone", {20000, 0, 0, 0}, 10000},
        {"one that ends in between", {3000, 0, 0, 0}, 10000},
        {"two halve it", {20000, 20000, 0, 0}, 5000},
        {"who has no work would be one more", {0, 20000, 0, 0}, 5000},
        {"four have a quarter each", {20000, 20000, 20000, 20000}, 2500},
        {"when the other ends one is alone", {20000, 2000, 0, 0}, 8000},
        {"when it ends itself it would be the second", {2000, 20000, 0, 0}, 5000},
        {"three, of which two end one after the other", {20000, 1000, 2000, 0}, 7000},
        {"all end: what is over counts whole", {1000, 1000, 1000, 1000}, 7000},
        {"as much work as time", {5000, 5000, 0, 0}, 5000},
    };

    for (unsigned row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
        set_scene(TENANTS);
        for (unsigned i = 0; i < TENANTS; i++)
            give(i, rows[row].backlog[i] * UNIT);
        CHECK_EQUAL(rows[row].sentence, pass(10000 * UNIT), rows[row].grown * UNIT);
    }
}

static void the_finished_is_no_backlog(void)
{
    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 20000 * UNIT);
    finish(1, 20000 * UNIT); /* it took less than it had said */
    pass(1000 * UNIT);
    CHECK_EQUAL("of whose work all is finished, nothing is left", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("the other is alone then", pass(1000 * UNIT), 1000 * UNIT);
    CHECK_EQUAL("who has work", scene.fluid.busy, 1);
    pass(30000 * UNIT);
    CHECK_EQUAL("what must be done by now is done, whoever says nothing of it",
                scene.lanes[0][0].backlog_ns, 0);
    pass(1000 * UNIT);
    CHECK_EQUAL("nobody has work", scene.fluid.busy, 0);
}

static void what_one_had_sooner_another_had_not(void)
{
    set_scene(3);
    give(0, 20000 * UNIT);
    give(1, 8000 * UNIT);
    give(2, 1000 * UNIT);
    finish(1, 8000 * UNIT); /* of which the model thinks that it is half done */
    pass(9000 * UNIT);
    CHECK_EQUAL("the finished is no backlog", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("who was told to be done is not", scene.lanes[2][0].backlog_ns, 1000 * UNIT);
    CHECK_EQUAL("the other has the rest", scene.lanes[0][0].backlog_ns, 19000 * UNIT);
    finish(2, 1000 * UNIT);
    finish(0, 19500 * UNIT);
    pass(500 * UNIT);
    CHECK_EQUAL("never more than is in flight", scene.lanes[0][0].backlog_ns, 500 * UNIT);
    CHECK_EQUAL("whoever has had it", scene.lanes[2][0].backlog_ns, 0);
}

static void who_says_nothing_any_more_has_no_more_than_before(void)
{
    set_scene(2);
    give(1, 5000 * UNIT);
    give(0, 20000 * UNIT);
    for (int i = 0; i < 16; i++) {
        pass(1000 * UNIT);
        finish(0, 1000 * UNIT); /* it is alone */
    }
    CHECK_EQUAL("its work is done or lost", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("and the other has the device", pass(1000 * UNIT), 1000 * UNIT);
}

static void words_wrap_and_lie(void)
{
    set_scene(1);
    scene.work[0][0] = (struct usage_work) {UINT32_MAX - 10, UINT32_MAX - 10};
    scene.lanes[0][0] = (struct fluid_lane) {0};
    pass(UNIT);
    give(0, 5000 * UNIT);
    pass(1000 * UNIT);
    CHECK_EQUAL("over the end of the word", scene.lanes[0][0].backlog_ns, 4000 * UNIT);
    finish(0, 6000 * UNIT);
    pass(1000 * UNIT);
    CHECK_EQUAL("more finished than begun is nothing", scene.lanes[0][0].backlog_ns, 0);
    give(0, UINT64_C(1000000000000));
    pass(UNIT);
    CHECK("a backlog of hours is not believed",
          scene.lanes[0][0].backlog_ns < UINT64_C(11000000000));
}

static void one_that_is_seen_late_has_only_what_is_in_flight(void)
{
    set_scene(1);
    scene.lanes[0][0] = (struct fluid_lane) {0};
    scene.work[0][0] = (struct usage_work) {700000, 698000};
    pass(1000 * UNIT);
    CHECK_EQUAL("what it did before is over", scene.lanes[0][0].backlog_ns, 1000 * UNIT);
}

static uint64_t backlog_of(unsigned tenant)
{
    uint64_t sum = 0;

    for (unsigned lane = 0; lane < scene.tenants[tenant].lane_count; lane++)
        sum += scene.lanes[tenant][lane].backlog_ns;
    return sum;
}

static void a_container_that_claims_more_than_its_share_is_not_believed(void)
{
    uint64_t second = 1000000000;

    set_scene(2);
    scene.tenants[1].lane_count = 40;
    for (unsigned tick = 0; tick < 400; tick++) {
        for (unsigned lane = 0; lane < 40; lane++)
            scene.work[1][lane].begun += (uint32_t) (second / UNIT);
        pass(TICK_NS);
    }
    CHECK_EQUAL("no more than 2 s ahead of it", backlog_of(1) <= 2 * second, 1);
    for (unsigned lane = 0; lane < 40; lane++)
        scene.work[1][lane].finished = scene.work[1][lane].begun;
    pass(TICK_NS);
    CHECK_EQUAL("what it says is finished is over", backlog_of(1), 0);
}

static void a_crowd_slows_the_clock_and_never_stops_it(void)
{
    set_scene(1);
    scene.tenants[0].lane_count = LANES;
    for (unsigned lane = 0; lane < LANES; lane++) {
        fluid_see(&scene.lanes[0][lane], scene.work[0][lane]);
        scene.work[0][lane].begun = 3000; /* together less than may be begun ahead */
    }
    CHECK_EQUAL("a 64th at least", pass(6300 * UNIT), 100 * UNIT);
    CHECK_EQUAL("as many as are told apart", scene.fluid.busy, FLUID_BUSY);
    CHECK_EQUAL("no time, no growth", pass(0), 0);
}

/* The second comes in the third quarter of a tick, and ends before its end. */
static void rates_change_within_a_tick(void)
{
    const struct clock_sample *points = scene.tenants[0].points;

    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 1000 * UNIT);
    scene.tenants[1].bought_ns = START + 8000 * UNIT;
    CHECK_EQUAL("it is slowed only while it has a neighbour", pass(16000 * UNIT), 15000 * UNIT);
    CHECK_EQUAL("alone, halved, alone", scene.tenants[0].point_count, 3);
    CHECK_EQUAL("until the other came", points[0].at_ns, START + 8000 * UNIT);
    CHECK_EQUAL("in whole", points[0].share_ns, START + 8000 * UNIT);
    CHECK_EQUAL("until the other was done", points[1].at_ns, START + 10000 * UNIT);
    CHECK_EQUAL("in halves", points[1].share_ns, START + 9000 * UNIT);
    CHECK_EQUAL("the last is the tick's end", points[2].at_ns, START + 16000 * UNIT);
    CHECK_EQUAL("the other's clock is halved throughout", scene.tenants[1].share_ns,
                START + 8000 * UNIT);
}

/* Who keeps a backlog and who waits, and what then comes of it after 200 ms. */
struct habit {
    uint32_t own;
    uint32_t limit;
    uint32_t works; /* percent of each tick */
    int waits;
};

static uint32_t settle(const struct habit *habits)
{
    set_scene(TENANTS);
    for (unsigned i = 0; i < TENANTS; i++) {
        scene.tenants[i].own = habits[i].own * PERCENT;
        scene.tenants[i].limit = habits[i].limit * PERCENT;
    }
    for (unsigned tick = 0; tick < 40; tick++) {
        for (unsigned i = 0; i < TENANTS; i++) {
            give(i, TICK_NS * habits[i].works / 100);
            if (habits[i].waits)
                fluid_wait(&scene.tenants[i], scene.fluid.now_ns);
        }
        pass(TICK_NS);
        for (unsigned i = 0; i < TENANTS; i++)
            finish(i, TICK_NS * habits[i].works / 100);
    }
    return scene.fluid.lent;
}

static void idle_shares_are_lent(void)
{
    static const struct {
        const char *sentence;
        struct habit habits[TENANTS];
        double lent, margin; /* for each of a share */
    } rows[] = {
        {"alone, all of the rest", {{25, 100, 25, 1}}, 3.0, 0.01},
        {"up to its limit", {{25, 40, 25, 1}}, 0.6, 0.01},
        {"a hard one gets nothing", {{25, 25, 25, 1}}, 0, 0},
        {"who does not wait needs nothing", {{25, 100, 10, 0}}, 0, 0},
        {"what a busy neighbour has is its own", {{25, 100, 25, 1}, {75, 75, 75, 1}}, 0, 0.01},
        {"what an idle one has is lent",
         {{25, 100, 25, 1}, {50, 50, 50, 1}, {25, 25, 0, 0}},
         1.0,
         0.01},
        {"two divide by their shares",
         {{20, 100, 20, 1}, {40, 100, 40, 1}, {40, 40, 0, 0}},
         2.0 / 3,
         0.01},
        {"what one may not have the other gets", {{20, 30, 20, 1}, {40, 100, 40, 1}}, 0.75, 0.01},
        {"who uses little lends the most of it", {{50, 100, 50, 1}, {50, 50, 10, 0}}, 0.71, 0.05},
        {"who has what was lent keeps it without waiting", {{25, 100, 90, 0}}, 3.0, 0.01},
        {"promises over the whole lend nothing", {{60, 100, 50, 1}, {60, 60, 50, 1}}, 0, 0},
    };

    for (unsigned row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
        double lent = (double) settle(rows[row].habits) / CLOCK_WHOLE;

        CHECK(rows[row].sentence, lent >= rows[row].lent - rows[row].margin &&
                                      lent <= rows[row].lent + rows[row].margin);
    }
}

static void what_is_lent_is_taken_back_at_once(void)
{
    static const struct habit habits[TENANTS] = {{25, 100, 25, 1}, {75, 75, 0, 0}};

    CHECK("it is lent while its owner is idle", settle(habits) > 2 * CLOCK_WHOLE);
    fluid_wait(&scene.tenants[0], scene.fluid.now_ns);
    give(1, TICK_NS / 10);
    pass(TICK_NS);
    CHECK("not in the tick in which the owner has work", scene.fluid.lent < PERCENT);
}

int main(void)
{
    level_is_that_of_processor_sharing();
    the_finished_is_no_backlog();
    what_one_had_sooner_another_had_not();
    who_says_nothing_any_more_has_no_more_than_before();
    words_wrap_and_lie();
    one_that_is_seen_late_has_only_what_is_in_flight();
    rates_change_within_a_tick();
    a_container_that_claims_more_than_its_share_is_not_believed();
    a_crowd_slows_the_clock_and_never_stops_it();
    idle_shares_are_lent();
    what_is_lent_is_taken_back_at_once();
    return check_end();
}
