/* SPDX-License-Identifier: Apache-2.0 */
/* test_lending.c -- the arbiter's device model, tick by tick: clocks, corrections, times alone. */
#include "check.h"
#include "lending_scene.h"

static void clock_follows_processor_sharing(void)
{
    static const struct {
        const char *sentence;
        uint64_t backlog[TENANTS]; /* in units of 1024 ns */
        uint64_t grown;            /* in 10000 units */
    } rows[] = {
        {"no process has work: as if alone", {0, 0, 0, 0}, 10000},
        {"one that is alone", {20000, 0, 0, 0}, 10000},
        {"one that ends in between", {3000, 0, 0, 0}, 10000},
        {"two halve it", {20000, 20000, 0, 0}, 5000},
        {"an idle container would be the second", {0, 20000, 0, 0}, 5000},
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

static void finished_work_is_no_backlog(void)
{
    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 20000 * UNIT);
    finish(1, 20000 * UNIT); /* it took less than it had announced */
    pass(1000 * UNIT);
    CHECK_EQUAL("finished work leaves no backlog", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("the other is alone then", pass(1000 * UNIT), 1000 * UNIT);
    CHECK_EQUAL("one has work", scene.lending.busy, 1);
    CHECK_EQUAL("of the first container", scene.tenants[0].busy, 1);
    CHECK_EQUAL("not of the second", scene.tenants[1].busy, 0);
    pass(30000 * UNIT);
    CHECK_EQUAL("overdue work counts as done, even if not reported", scene.lanes[0][0].backlog_ns,
                0);
    pass(1000 * UNIT);
    CHECK_EQUAL("no process has work", scene.lending.busy, 0);
}

static void earlier_service_of_one_delays_another(void)
{
    set_scene(3);
    give(0, 20000 * UNIT);
    give(1, 8000 * UNIT);
    give(2, 1000 * UNIT);
    finish(1, 8000 * UNIT); /* half done by the model */
    pass(9000 * UNIT);
    CHECK_EQUAL("finished work is no backlog", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("the model's completion is reverted", scene.lanes[2][0].backlog_ns, 1000 * UNIT);
    CHECK_EQUAL("the other has the rest", scene.lanes[0][0].backlog_ns, 19000 * UNIT);
    finish(2, 1000 * UNIT);
    finish(0, 19500 * UNIT);
    pass(500 * UNIT);
    CHECK_EQUAL("never more than is in flight", scene.lanes[0][0].backlog_ns, 500 * UNIT);
    CHECK_EQUAL("for either container", scene.lanes[2][0].backlog_ns, 0);
}

static void withdrawn_work_was_not_served(void)
{
    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 3000 * UNIT);
    CHECK_EQUAL("two halve it", pass(1000 * UNIT), 500 * UNIT);
    scene.work[1][0].begun -= 2500; /* the expectation was too high */
    CHECK_EQUAL("then one is alone", pass(1000 * UNIT), 1000 * UNIT);
    CHECK_EQUAL("and had no less before", scene.lanes[0][0].backlog_ns, 18500 * UNIT);
    give(1, 1000 * UNIT);
    CHECK_EQUAL("what is begun again counts", pass(1000 * UNIT), 500 * UNIT);
    scene.work[1][0].begun -= 1500;
    pass(1000 * UNIT);
    CHECK_EQUAL("more than there is cannot be taken back", scene.lanes[1][0].backlog_ns, 0);
}

static void silent_process_drains_its_backlog(void)
{
    set_scene(2);
    give(1, 5000 * UNIT);
    give(0, 20000 * UNIT);
    for (int i = 0; i < 40; i++) {
        pass(1000 * UNIT);
        give(0, 1000 * UNIT);
        finish(0, 1000 * UNIT); /* it is alone */
    }
    CHECK_EQUAL("its work is done or lost", scene.lanes[1][0].backlog_ns, 0);
    CHECK_EQUAL("and the other has the device", pass(1000 * UNIT), 1000 * UNIT);
}

static int is_near(uint64_t ns, uint64_t other, uint64_t margin)
{
    return ns + margin >= other && ns <= other + margin;
}

/* The published word of an idle time, in units since the scene began; *until* 0: it goes on. */
static uint64_t idle_word(uint64_t from, uint64_t until)
{
    uint64_t length = until ? until - from : IDLE_LENGTH_MASK;

    return (START / UNIT + from) << IDLE_LENGTH_BITS | length;
}

static void idle_process_is_not_served(void)
{
    uint64_t idle[2] = {idle_word(0, 800), 0};

    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 20000 * UNIT);
    for (unsigned i = 0; i < 2; i++)
        lending_see(&scene.lanes[i][0], scene.work[i][0], i ? idle : NULL);
    lending_tick(&scene.lending, scene.order, 2, START + 1600 * UNIT);
    CHECK("only from then on", is_near(20000 * UNIT - scene.lanes[1][0].backlog_ns, 400 * UNIT, 2));
    CHECK("the other had the device",
          is_near(20000 * UNIT - scene.lanes[0][0].backlog_ns, 1200 * UNIT, 2));
    CHECK("and its clock says so",
          is_near(scene.tenants[0].share_ns - scene.tenants[0].before_ns, 1200 * UNIT, 2));
}

/* Three containers of 10, 20 and 70 %: how far the last one's clock advances beside an honest
 * second one, or beside one that claims endless work for many processes. */
static uint64_t clock_of_the_third(int lies)
{
    uint64_t before = 0;

    set_scene(3);
    scene.tenants[0].own = scene.tenants[0].limit = 10 * PERCENT;
    scene.tenants[1].own = scene.tenants[1].limit = 20 * PERCENT;
    scene.tenants[2].own = scene.tenants[2].limit = 70 * PERCENT;
    scene.tenants[1].lane_count = lies ? LANES : 1;
    for (int tick = 0; tick < 5000; tick++) { /* its initial allowance lasts for half of that */
        static const uint64_t parts[] = {10, 20, 70};

        for (unsigned i = 0; i < 3; i++)
            for (unsigned lane = 0; lane < (lies && i == 1 ? LANES : 1U); lane++) {
                struct usage_work *work = &scene.work[i][lane];

                work->finished = work->begun;
                work->begun +=
                    (uint32_t) (lies && i == 1 ? 1000000 : TICK_NS / UNIT * parts[i] / 100);
            }
        pass(TICK_NS);
        if (tick == 2500)
            before = scene.tenants[2].share_ns;
    }
    return scene.tenants[2].share_ns - before;
}

static void false_backlog_slows_others_by_at_most_its_share(void)
{
    uint64_t honest = clock_of_the_third(0), lying = clock_of_the_third(1);

    CHECK("by a quarter of its share at most", lying > honest * 3 / 4);
}

static void published_counters_wrap_and_may_be_false(void)
{
    set_scene(1);
    scene.work[0][0] = (struct usage_work) {UINT32_MAX - 10, UINT32_MAX - 10};
    scene.lanes[0][0] = (struct lending_process) {0};
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

static void late_seen_process_counts_only_work_in_flight(void)
{
    set_scene(1);
    scene.lanes[0][0] = (struct lending_process) {0};
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

static void backlog_beyond_share_is_capped(void)
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

static void many_processes_slow_the_clock_but_never_stop_it(void)
{
    set_scene(1);
    scene.tenants[0].lane_count = LANES;
    for (unsigned lane = 0; lane < LANES; lane++) {
        lending_see(&scene.lanes[0][lane], scene.work[0][lane], NULL);
        scene.work[0][lane].begun = 3000; /* in total below the limit of unserved work */
    }
    CHECK_EQUAL("a 64th at least", pass(6300 * UNIT), 100 * UNIT);
    CHECK_EQUAL("at most LENDING_BUSY are counted", scene.lending.busy, LENDING_BUSY);
    CHECK_EQUAL("no time, no growth", pass(0), 0);
}

/* The second one starts in the middle of a tick and finishes before its end. */
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

/* A clock grows by a 63rd of the time at least, and one nanosecond. */
static uint64_t least_of(uint64_t ns)
{
    return ns / 63 + 1;
}

/* Two have work all the time, and the model serves 4000 units to each. */
static void excess_service_of_others_is_subtracted_from_the_clock(void)
{
    static const struct {
        const char *sentence;
        uint64_t first, second; /* finished, in units */
        uint64_t grown;
    } rows[] = {
        {"the other finished what it was served", 0, 4000, 4000 * UNIT},
        {"the other finished less", 0, 3000, 4000 * UNIT},
        {"a little more", 0, 4001, 3999 * UNIT},
        {"more", 0, 6000, 2000 * UNIT},
        {"more, this one some", 1000, 6000, 2000 * UNIT},
        {"more than this one lacks", 3500, 7000, 3500 * UNIT},
        {"nearly all", 0, 7500, 500 * UNIT},
        {"all of the time", 0, 8000, 8000 * UNIT / 63},
        {"even more than that", 0, 20000, 8000 * UNIT / 63},
        {"as much as this one", 8000, 8000, 4000 * UNIT},
    };

    for (size_t row = 0; row < ARRAY_SIZE(rows); row++) {
        set_scene(2);
        give(0, 20000 * UNIT);
        give(1, 20000 * UNIT);
        finish(0, rows[row].first * UNIT);
        finish(1, rows[row].second * UNIT);
        CHECK(rows[row].sentence, is_near(pass(8000 * UNIT), rows[row].grown, 2));
        CHECK("the other's clock stays, if it was served more",
              rows[row].second < 4000 || rows[row].first > 4000 ||
                  is_near(scene.tenants[1].share_ns, START + 4000 * UNIT, 2));
        CHECK_EQUAL("the clock ends with its last point",
                    scene.tenants[0].points[scene.tenants[0].point_count - 1].share_ns,
                    scene.tenants[0].share_ns);
    }
}

static void two_lagging_containers_split_the_correction(void)
{
    set_scene(3);
    for (unsigned i = 0; i < 3; i++)
        give(i, 20000 * UNIT);
    finish(2, 5000 * UNIT);
    CHECK("of 2000 more than 3000", is_near(pass(9000 * UNIT), 2000 * UNIT, 2));
    CHECK("from either", is_near(scene.tenants[1].share_ns, START + 2000 * UNIT, 2));
    CHECK("nothing from the one that finished",
          is_near(scene.tenants[2].share_ns, START + 3000 * UNIT, 2));
}

/* An excess of 3000, of which the second container lacks only 500. */
static void correction_beyond_ones_lag_goes_to_the_other(void)
{
    set_scene(3);
    for (unsigned i = 0; i < 3; i++)
        give(i, 20000 * UNIT);
    finish(1, 2500 * UNIT);
    finish(2, 6000 * UNIT);
    CHECK("the rest from the one that lacks more", is_near(pass(9000 * UNIT), 500 * UNIT, 2));
    CHECK("what it lacks from the other",
          is_near(scene.tenants[1].share_ns, START + 2500 * UNIT, 2));
}

static void correction_is_summed_over_a_containers_processes(void)
{
    set_scene(2);
    scene.tenants[0].lane_count = 2;
    lending_see(&scene.lanes[0][1], scene.work[0][1], NULL);
    give(0, 20000 * UNIT);
    scene.work[0][1].begun += 20000;
    give(1, 20000 * UNIT);
    finish(1, 4000 * UNIT);
    CHECK("half of it each, and both off the clock", is_near(pass(9000 * UNIT), 2000 * UNIT, 2));
}

/* A silent process may be dead. */
static void long_silent_process_gets_no_correction(void)
{
    set_scene(2);
    give(0, 400000 * UNIT);
    give(1, 400000 * UNIT);
    for (int i = 0; i < 20; i++) {
        finish(1, 8000 * UNIT);
        CHECK("some times, then as the model serves",
              is_near(pass(8000 * UNIT), i < 16 ? least_of(8000 * UNIT) : 4000 * UNIT, 2));
    }
}

/* The other one starts in the middle of the tick and has finished 2000 more than it was served. */
static void correction_spreads_over_all_clock_points(void)
{
    const struct clock_sample *points = scene.tenants[0].points;

    set_scene(2);
    give(0, 20000 * UNIT);
    give(1, 10000 * UNIT);
    finish(1, 6000 * UNIT);
    scene.tenants[1].bought_ns = START + 8000 * UNIT;
    CHECK("8000 and half of 8000, less 2000", is_near(pass(16000 * UNIT), 10000 * UNIT, 2));
    CHECK_EQUAL("alone, halved", scene.tenants[0].point_count, 2);
    CHECK_EQUAL("until the other came", points[0].at_ns, START + 8000 * UNIT);
    CHECK("its part of what is above the least",
          is_near(points[0].share_ns, START + 6660 * UNIT, 2 * UNIT));
    CHECK_EQUAL("to the end of the tick", points[1].at_ns, START + 16000 * UNIT);
    CHECK_EQUAL("the last is the clock", points[1].share_ns, scene.tenants[0].share_ns);
}

/* One tick in which these containers have work that they do not finish, and the others have none;
 * *lane* is the first container's process that has it. */
static uint64_t work_and_pass(unsigned lane, int first, int second)
{
    uint64_t from = scene.lending.now_ns;

    for (unsigned i = 0; i < 2; i++) {
        struct usage_work *work = &scene.work[0][i];

        work->finished = work->begun;
        work->begun += first && i == lane ? 5000 : 0;
    }
    scene.work[1][0].finished = scene.work[1][0].begun;
    scene.work[1][0].begun += second ? 5000 : 0;
    pass(TICK_NS);
    return from;
}

static struct clock_alone last_of(unsigned tenant)
{
    return scene.tenants[tenant].moments[scene.tenants[tenant].moment];
}

static void exclusive_intervals_are_published_afterwards(void)
{
    uint64_t from;

    set_scene(2);
    scene.tenants[0].lane_count = 2;
    work_and_pass(0, 1, 1);
    work_and_pass(0, 1, 1);
    CHECK("two: neither is", !last_of(0).slot && !last_of(1).slot);
    work_and_pass(0, 1, 0);
    CHECK("the other one was not yet seen to have begun nothing", !last_of(0).slot);
    from = work_and_pass(0, 1, 0);
    work_and_pass(0, 1, 0);
    CHECK_EQUAL("one is", last_of(0).slot, 1);
    CHECK_EQUAL("since", last_of(0).from_ns, from);
    CHECK_EQUAL("until now", last_of(0).until_ns, scene.lending.now_ns);
    work_and_pass(0, 0, 0);
    work_and_pass(0, 0, 0);
    work_and_pass(0, 1, 0);
    CHECK_EQUAL("a pause of all is no end of it", last_of(0).from_ns, from);
    CHECK_EQUAL("until now", last_of(0).until_ns, scene.lending.now_ns);
    scene.work[0][1].begun += 5000;
    from = work_and_pass(0, 1, 0);
    CHECK_EQUAL("beside another process of its own it is not", last_of(0).until_ns, from);
    work_and_pass(1, 1, 0);
    from = work_and_pass(1, 1, 0);
    CHECK_EQUAL("then that is", last_of(0).slot, 2);
    CHECK_EQUAL("since", last_of(0).from_ns, from);
    work_and_pass(1, 0, 0);
    work_and_pass(1, 0, 0);
    from = work_and_pass(1, 0, 1);
    CHECK_EQUAL("and after it the other container's", last_of(1).slot, 1);
    CHECK_EQUAL("since it began", last_of(1).from_ns, from);
    CHECK("neither says the same as the other", last_of(0).until_ns <= last_of(1).from_ns);
}

static void exclusive_interval_restarts_when_containers_change(void)
{
    uint64_t from;

    set_scene(2);
    work_and_pass(0, 1, 0);
    work_and_pass(0, 1, 0);
    lending_seat(&scene.lending, scene.order, scene.count);
    from = work_and_pass(0, 1, 0);
    CHECK_EQUAL("alone since they were seen", last_of(0).from_ns, from);
}

static int has_work(struct usage_work work, const uint64_t *idle, uint64_t passed)
{
    return lending_has_work(&scene.lanes[0][0], work, idle, passed, scene.lending.now_ns + passed);
}

static void work_is_seen_between_ticks(void)
{
    const uint64_t ms = UINT64_C(1000000);
    struct usage_work none = {0, 0}, begun = {2000, 0}, ended = {2000, 2000}, credit = {2000, 1999};
    uint64_t idle[2];

    set_scene(1);
    pass(TICK_NS);
    CHECK("no work", !has_work(none, NULL, ms));
    CHECK("some was begun since the tick", has_work(begun, NULL, ms));
    CHECK("long ago", has_work(begun, NULL, 40 * ms));
    CHECK("and is done", !has_work(ended, NULL, ms));
    CHECK("a unit is credit", !has_work(credit, NULL, ms));
    idle[0] = idle_word(1000, 0);
    idle[1] = idle_word(0, 500);
    CHECK("it says that it has none", !has_work(begun, idle, ms));
    idle[0] = idle_word(1000, (TICK_NS + ms / 2) / UNIT);
    CHECK("it has some again, by what it had paid before", has_work(none, idle, ms));
    CHECK("that lasts no longer than such credit", !has_work(none, idle, 3 * ms));

    give(0, 30 * ms);
    pass(TICK_NS);
    begun = scene.work[0][0];
    CHECK("work of six ticks, in the first", has_work(begun, NULL, ms));
    for (unsigned tick = 0; tick < 4; tick++)
        pass(TICK_NS);
    CHECK("in the fifth, with nothing published since", has_work(begun, NULL, ms));
    for (unsigned tick = 0; tick < 4; tick++)
        pass(TICK_NS);
    CHECK("overdue, with nothing published", !has_work(begun, NULL, ms));
}

int main(void)
{
    clock_follows_processor_sharing();
    finished_work_is_no_backlog();
    earlier_service_of_one_delays_another();
    withdrawn_work_was_not_served();
    silent_process_drains_its_backlog();
    idle_process_is_not_served();
    false_backlog_slows_others_by_at_most_its_share();
    published_counters_wrap_and_may_be_false();
    late_seen_process_counts_only_work_in_flight();
    rates_change_within_a_tick();
    backlog_beyond_share_is_capped();
    excess_service_of_others_is_subtracted_from_the_clock();
    two_lagging_containers_split_the_correction();
    correction_beyond_ones_lag_goes_to_the_other();
    correction_is_summed_over_a_containers_processes();
    long_silent_process_gets_no_correction();
    correction_spreads_over_all_clock_points();
    exclusive_intervals_are_published_afterwards();
    exclusive_interval_restarts_when_containers_change();
    many_processes_slow_the_clock_but_never_stop_it();
    work_is_seen_between_ticks();
    return check_end();
}
