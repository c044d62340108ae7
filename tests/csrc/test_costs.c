/* SPDX-License-Identifier: Apache-2.0 */
/* test_costs.c -- the cost model: expected durations of launches, and how they are learned. */
#include "check.h"
#include "core/compiler.h"
#include "cost_learning.h"

#define LIMIT_NS INT64_C(4000000000) /* of an expectation */

static void learn_changed(struct costs_key key, int64_t ns)
{
    learn(key, (struct costs_sample) {
                   .ns = ns, .most_ns = ns, .clock_ns = ns, .alone = 1, .changed = 1});
}

/* Beside other processes, on a stream that was idle: its launch took 2 us of that. */
#define LAUNCH_NS (2 * US)

static void learn_idle(struct costs_key key, int64_t ns, int64_t clock_ns)
{
    learn(key, (struct costs_sample) {.ns = ns, .most_ns = ns + LAUNCH_NS, .clock_ns = clock_ns});
}

/* Two processes have turns of *turn_ns*, and this one launches the same work repeatedly: the
 * duration of one launch that begins at a random time of its turn, and the clock's part of it. */
static uint64_t random_state;

static int64_t random_below(int64_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (int64_t) (random_state >> 33) % limit;
}

static void learn_in_turns(struct costs_key key, int64_t work_ns, int64_t turn_ns)
{
    int64_t left = turn_ns - random_below(turn_ns); /* of the turn that it begins in */
    int64_t others = work_ns > left ? ((work_ns - left - 1) / turn_ns + 1) * turn_ns : 0;

    learn_queued(key, work_ns + others, (work_ns + others) / 2);
}

static int is_near(int64_t ns, int64_t other)
{
    return ns > other - other / 20 && ns < other + other / 20;
}

/* --- shapes that were never measured ---------------------------------------------------------- */

static void test_new_shape_is_expected_to_take_the_guess(void)
{
    struct costs_key key = costs_key(0x1000, 8), other = costs_key(0x1001, 8);

    CHECK("it has no entry", !costs_find(&costs, &key));
    CHECK_EQUAL("the guess", costs_make(&costs, &key, 70 * US)->ns, 70 * US);
    CHECK_EQUAL("a later guess changes nothing", costs_make(&costs, &key, 90 * US)->ns, 70 * US);
    CHECK_EQUAL("its state says so", make(key)->state, COST_GUESSED);
    CHECK("it has an entry", costs_find(&costs, &key) == make(key));
    CHECK_EQUAL("the same for each launch", expected(key) + expected(key), 140 * US);
    CHECK_EQUAL("no launch takes nothing", costs_make(&costs, &other, 0)->ns, 500);
}

static void test_each_shape_of_a_function_has_its_own_entry(void)
{
    struct costs_key key = costs_key(0x1000, 8), grid = costs_key(0x1000, 9);

    CHECK("another entry", make(key) != make(grid));
    CHECK_EQUAL("of one function", key.function, grid.function);
    learn_alone(key, 80 * US);
    CHECK_EQUAL("that keeps its expectation", expected(grid), COSTS_GUESS_NS);
}

static void test_new_shape_inherits_its_functions_duration(void)
{
    learn_alone(costs_key(0x3000, 1), 80 * US);
    CHECK_EQUAL("as the only one", expected(costs_key(0x3000, 2)), 80 * US);
    CHECK_EQUAL("which is a guess", make(costs_key(0x3000, 2))->state, COST_GUESSED);
    learn_alone(costs_key(0x3000, 3), 160 * US);
    CHECK_EQUAL("a quarter of the way to the next", expected(costs_key(0x3000, 4)), 100 * US);
    for (uint64_t detail = 5; detail < 40; detail++)
        learn_alone(costs_key(0x3000, detail), 160 * US);
    CHECK("as the last ones", is_near(expected(costs_key(0x3000, 50)), 160 * US));
    learn_queued(costs_key(0x3000, 51), 80 * US, 40 * US);
    CHECK("also from measurements beside others",
          is_near(expected(costs_key(0x3000, 52)), 140 * US));
    CHECK_EQUAL("not those of another function", expected(costs_key(0x3001, 1)), COSTS_GUESS_NS);
}

static void test_expectation_grows_while_first_launch_is_pending(void)
{
    struct costs_key key = costs_key(0x2000, 8);
    struct cost *cost = make(key);

    cost->pending = 1;
    CHECK_EQUAL("first", costs_expect(cost), COSTS_GUESS_NS);
    CHECK_EQUAL("second", costs_expect(cost), 8 * COSTS_GUESS_NS);
    CHECK_EQUAL("third", costs_expect(cost), 64 * COSTS_GUESS_NS);
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL("the limit", costs_expect(cost), 2 * MS);
    learn_queued(key, 6 * US, 3 * US);
    CHECK("a measurement ends that", !cost->pending);
    CHECK_EQUAL("and is the expectation", expected(key), 6 * US);
}

static void test_only_a_guess_grows(void)
{
    struct costs_key measured = costs_key(0x2000, 8), seen = costs_key(0x2001, 8);
    struct cost *cost = costs_make(&costs, &(struct costs_key) {1, 1}, 50 * MS);

    cost->pending = 1;
    CHECK_EQUAL("no guess beyond the limit", costs_expect(cost) + costs_expect(cost), 100 * MS);
    learn_alone(measured, 6 * US);
    make(measured)->pending = 1;
    CHECK_EQUAL("nothing measured", expected(measured) + expected(measured), 12 * US);
    learn_queued(seen, 6 * US, 3 * US);
    make(seen)->pending = 1;
    CHECK_EQUAL("nothing seen beside others", expected(seen) + expected(seen), 12 * US);
    CHECK_EQUAL("no guess that is not pending",
                expected(costs_key(0x2002, 8)) + expected(costs_key(0x2002, 8)),
                2 * COSTS_GUESS_NS);
}

/* --- measured alone --------------------------------------------------------------------------- */

static void test_exclusive_measurements_give_the_mean(void)
{
    struct costs_key key = costs_key(0x4000, 8);

    learn_alone(key, 300 * US);
    CHECK_EQUAL("the first replaces the guess", expected(key), 300 * US);
    CHECK_EQUAL("it is measured", make(key)->state, COST_MEASURED);
    learn_alone(key, 600 * US);
    CHECK_EQUAL("of two", expected(key), 450 * US);
    learn_alone(key, 150 * US);
    CHECK_EQUAL("of three", expected(key), 350 * US);
    learn_alone(key, 350 * US - 4 * 50 * US);
    CHECK_EQUAL("of four", expected(key), 300 * US);
    for (int i = 0; i < 12; i++)
        learn_alone(key, 300 * US);
    CHECK_EQUAL("unchanged", expected(key), 300 * US);
    for (int i = 0; i < 3; i++) {
        learn_alone(key, expected(key) + 16 * 10 * US);
        CHECK_EQUAL("of sixteen and no more", expected(key), (310 + 10 * i) * US);
    }
}

static void test_first_exclusive_measurement_replaces_shared_ones(void)
{
    struct costs_key key = costs_key(0x4100, 8);

    learn_queued(key, 90 * US, 45 * US);
    learn_queued(key, 80 * US, 40 * US);
    CHECK_EQUAL("seen", make(key)->state, COST_SEEN);
    learn_alone(key, 50 * US);
    CHECK_EQUAL("replaced", expected(key), 50 * US);
    CHECK_EQUAL("measured", make(key)->state, COST_MEASURED);
    CHECK_EQUAL("the mean begins", make(key)->count, 1);
}

static void test_changed_duration_restarts_the_mean(void)
{
    struct costs_key key = costs_key(0x4200, 8);

    for (int i = 0; i < 30; i++)
        learn_alone(key, 100 * US);
    learn_changed(key, 900 * US);
    CHECK_EQUAL("replaced", expected(key), 900 * US);
    learn_alone(key, 700 * US);
    CHECK_EQUAL("of two", expected(key), 800 * US);
    learn_alone(key, 500 * US);
    CHECK_EQUAL("of three", expected(key), 700 * US);
}

static void test_expectations_are_bounded(void)
{
    struct costs_key key = costs_key(0x4300, 8), guessed = costs_key(0x4301, 8);
    struct costs_key beside = costs_key(0x4302, 8);

    learn_alone(key, -5);
    CHECK_EQUAL("events that are wrong", expected(key), 500);
    learn_changed(key, INT64_MAX / 8);
    CHECK_EQUAL("four seconds at most", expected(key), LIMIT_NS);
    learn_alone(key, 2 * LIMIT_NS);
    CHECK_EQUAL("it stays there", expected(key), LIMIT_NS);
    learn_changed(key, 90 * US);
    CHECK_EQUAL("and comes back", expected(key), 90 * US);
    CHECK_EQUAL("a guess, too", costs_make(&costs, &guessed, 3 * LIMIT_NS)->ns, LIMIT_NS);
    learn_queued(beside, 2 * LIMIT_NS, 2 * LIMIT_NS);
    CHECK_EQUAL("beside others", expected(beside), LIMIT_NS);
    learn_queued(beside, 9 * LIMIT_NS, 9 * LIMIT_NS);
    CHECK_EQUAL("again", expected(beside), LIMIT_NS);
}

/* --- measured beside other processes ---------------------------------------------------------- */

static void test_work_shorter_than_a_turn_takes_its_shortest_time(void)
{
    struct costs_key key = costs_key(0x5000, 8);

    learn_queued(key, 90 * US, 45 * US);
    CHECK_EQUAL("the first at once", expected(key), 90 * US);
    CHECK_EQUAL("it was seen", make(key)->state, COST_SEEN);
    learn_queued(key, 1090 * US, 545 * US);
    CHECK_EQUAL("a turn of another process does not count", expected(key), 90 * US);
    learn_queued(key, 50 * US, 25 * US);
    CHECK_EQUAL("a shorter one at once", expected(key), 50 * US);
    random_state = 1;
    for (int i = 0; i < 1000; i++) {
        learn_in_turns(key, 50 * US, MS);
        CHECK_EQUAL("whatever turns there are", expected(key), 50 * US);
    }
}

static void test_work_spanning_turns_takes_the_clocks_time(void)
{
    static const int64_t work_us[] = {1500, 3000, 8000, 20000};

    for (size_t i = 0; i < ARRAY_SIZE(work_us); i++) {
        struct costs_key key = costs_key(0x5100 + i, 8);

        random_state = i + 1;
        for (int j = 0; j < 200; j++)
            learn_in_turns(key, work_us[i] * US, MS);
        CHECK("about its time", expected(key) > work_us[i] * US * 85 / 100);
        CHECK("and not that of others", expected(key) < work_us[i] * US * 115 / 100);
    }
}

static void test_work_as_long_as_a_turn_takes_its_shortest_time(void)
{
    struct costs_key key = costs_key(0x5200, 8);

    for (int i = 0; i < 400; i++) {
        if (i % 3)
            learn_idle(key, MS, MS / 2);
        else
            learn_queued(key, 2 * MS, MS);
        CHECK("a turn", is_near(expected(key), i ? MS : 2 * MS) || i < 2);
    }
}

static void test_clock_gives_no_more_than_the_shortest_time(void)
{
    struct costs_key key = costs_key(0x5300, 8);

    for (int i = 0; i < 100; i++)
        learn_queued(key, (4 + i % 5) * MS, 6 * MS);
    CHECK_EQUAL("the shortest", expected(key), 4 * MS);
}

static void test_without_clock_the_shortest_time_counts(void)
{
    struct costs_key key = costs_key(0x5400, 8);

    for (int i = 0; i < 100; i++)
        learn_queued(key, (8 + i % 5) * MS, 0);
    CHECK_EQUAL("the shortest", expected(key), 8 * MS);
    for (int i = 0; i < 100; i++)
        learn_queued(key, 9 * MS, 5 * MS);
    CHECK("then the clock", is_near(expected(key), 5 * MS));
}

/* The time of other processes meanwhile is known. */
static void learn_own(struct costs_key key, int64_t ns, int64_t own_ns, int crowded)
{
    learn(key, (struct costs_sample) {.ns = ns,
                                      .most_ns = ns + LAUNCH_NS,
                                      .clock_ns = ns / 2,
                                      .own_ns = own_ns,
                                      .crowded = crowded});
}

static void test_known_time_of_others_is_subtracted(void)
{
    struct costs_key key = costs_key(0x5600, 8);

    learn_queued(key, 6 * MS, 4 * MS);
    for (int i = 0; i < 3; i++)
        learn_own(key, (4 + i) * MS, 3 * MS + i, 0);
    CHECK_EQUAL("three times says nothing", make(key)->state, COST_SEEN);
    learn_own(key, 7 * MS, 3 * MS, 0);
    CHECK("four times the same is what it takes", is_near(expected(key), 3 * MS));
    CHECK_EQUAL("for sure", make(key)->state, COST_SURE);
    for (int i = 0; i < 100; i++)
        learn_own(key, 8 * MS, 4 * MS, 0);
    CHECK("and no more than the shortest", is_near(expected(key), 4 * MS));
}

static void test_varying_work_takes_the_mean(void)
{
    struct costs_key key = costs_key(0x5700, 8);

    for (int i = 0; i < 200; i++)
        learn_own(key, (4 + i % 5 * 4) * MS, (3 + i % 5 * 2) * MS, 0);
    CHECK("of what others did not have", is_near(expected(key), 7 * MS));
    CHECK_EQUAL("for sure", make(key)->state, COST_SURE);
    for (int i = 0; i < 200; i++)
        learn_own(key, 30 * MS, 25 * MS, 1);
    CHECK("beside other streams that is not known", is_near(expected(key), 7 * MS));
}

/* One of five is a collective. */
static void test_work_with_some_short_runs_takes_the_mean(void)
{
    struct costs_key key = costs_key(0x5800, 8);

    for (int i = 0; i < 200; i++)
        learn_own(key, i % 5 ? (100 + 20 * (i % 7)) * US : 9 * MS,
                  i % 5 ? (100 + 20 * (i % 7)) * US : 6 * MS, 0);
    CHECK("not the shortest", expected(key) > MS && expected(key) < 2 * MS);
}

static void learn_in_turn(struct costs_key key, int64_t ns, int64_t own_ns, int queued)
{
    learn(key, (struct costs_sample) {
                   .ns = ns, .most_ns = ns, .clock_ns = ns, .own_ns = own_ns, .queued = queued});
}

/* Two kernels under one name: the long one is never measured alone, and the device is idle before
 * the short one, which always takes the same time. */
static void test_long_runs_beside_contradict_short_ones_alone(void)
{
    struct costs_key key = costs_key(0x5810, 8);

    for (int i = 0; i < 40; i++) {
        learn(key, (struct costs_sample) {.ns = 150 * US, .most_ns = 150 * US, .alone = 1});
        learn_in_turn(key, 8 * MS, 7800 * US, 1);
        learn_in_turn(key, 150 * US, 148 * US, 0);
        learn_in_turn(key, 7900 * US, 7800 * US, 1);
    }
    CHECK("the mean of all", expected(key) > 7 * MS / 2 && expected(key) < 5 * MS);
    for (int i = 0; i < 400; i++)
        learn(key, (struct costs_sample) {.ns = 150 * US, .most_ns = 150 * US, .alone = 1});
    CHECK("if only short ones are left, these", is_near(expected(key), 150 * US));
}

/* A long launch beside others whose usage is not known yet: the clock gives it most of its time. */
static void test_long_run_makes_a_short_time_alone_doubtful(void)
{
    struct costs_key key = costs_key(0x5830, 8);

    learn(key, (struct costs_sample) {.ns = 150 * US, .most_ns = 150 * US, .alone = 1});
    learn_queued(key, 2 * MS, MS);
    CHECK_EQUAL("a time slice of others may explain it", make(key)->state, COST_MEASURED);
    learn_queued(key, 8 * MS, 4 * MS);
    CHECK_EQUAL("more than that may not", make(key)->state, COST_DOUBTED);
    CHECK_EQUAL("one launch does not contradict it", expected(key), 150 * US);
}

/* 0.15, 2 and 8 ms under one name. */
static void test_mean_of_different_runs_counts_each(void)
{
    static const int64_t takes[] = {150 * US, 2 * MS, 2 * MS, 8 * MS};
    struct costs_key key = costs_key(0x5840, 8);

    for (int i = 0; i < 400; i++)
        learn_in_turn(key, takes[i % 4], takes[i % 4], 1);
    CHECK("the mean", expected(key) > 27 * MS / 10 && expected(key) < 34 * MS / 10);
}

/* A launch in an idle stream waits for a time slice of others that report too little. */
static void test_waits_for_a_time_slice_do_not_contradict_a_time_alone(void)
{
    struct costs_key key = costs_key(0x5820, 8);

    learn(key, (struct costs_sample) {.ns = 5 * US, .most_ns = 5 * US, .alone = 1});
    learn_in_turn(key, 5 * US, 4 * US, 1);
    for (int i = 0; i < 30; i++)
        learn_in_turn(key, (100 + 60 * (i % 15)) * US, (90 + 60 * (i % 15)) * US, 0);
    CHECK("it holds", is_near(expected(key), 5 * US));
}

/* The time of others is known only to within a part of a turn. */
static void test_short_work_takes_its_shortest_time_if_others_are_uncertain(void)
{
    struct costs_key key = costs_key(0x5900, 8);

    for (int i = 0; i < 200; i++)
        learn_own(key, i % 9 ? 1280 * US + i * US : 280 * US, (200 + i % 5 * 100) * US, 0);
    CHECK("the shortest", is_near(expected(key), 280 * US));
}

/* On an idle stream work waits for a turn, which begins with its own as often as not. */
static void test_idle_stream_measurements_weigh_less(void)
{
    struct costs_key key = costs_key(0x5500, 8);

    for (int i = 0; i < 40; i++)
        learn_queued(key, 14 * MS, 8 * MS);
    for (int i = 0; i < 200; i++)
        learn_idle(key, 14 * MS, 6 * MS);
    CHECK("that of others holds", is_near(expected(key), 8 * MS));
}

static void test_launch_latency_is_subtracted_only_without_better_data(void)
{
    struct costs_key key = costs_key(0x5600, 8);

    learn_idle(key, 13 * US, 7 * US);
    CHECK_EQUAL("without it", expected(key), 13 * US);
    for (int i = 0; i < 20; i++)
        learn_queued(key, 15 * US, 8 * US);
    CHECK_EQUAL("what needed none", expected(key), 15 * US);
    for (int i = 0; i < 20; i++)
        learn_idle(key, 13 * US, 7 * US);
    CHECK_EQUAL("and it stays", expected(key), 15 * US);
}

/* A program that waits for each launch, beside many: each launch first waits for its turn, up to
 * 7 ms. */
static void test_random_waits_do_not_count_as_duration(void)
{
    struct costs_key key = costs_key(0x5700, 8);

    random_state = 5;
    for (int i = 0; i < 30; i++) {
        int64_t wait = random_below(7 * MS);

        learn_idle(key, 280 * US + wait, (280 * US + wait) / 8);
    }
    CHECK("nearer than the shortest of thirty", expected(key) < 480 * US);
    CHECK("and not nothing", expected(key) > 100 * US);
    for (int i = 0; i < 400; i++) {
        int64_t wait = random_below(7 * MS);

        learn_idle(key, 280 * US + wait, (280 * US + wait) / 8);
    }
    CHECK("of many", expected(key) > 240 * US && expected(key) < 330 * US);
}

static void test_longer_duration_is_learned(void)
{
    struct costs_key key = costs_key(0x5800, 8);

    for (int i = 0; i < 100; i++)
        learn_queued(key, 50 * US, 25 * US);
    for (int i = 0; i < 600; i++)
        learn_queued(key, 200 * US, 100 * US);
    CHECK_EQUAL("by nothing but measurements", expected(key), 200 * US);
}

static void test_other_streams_do_not_make_measurements_alike(void)
{
    struct costs_key key = costs_key(0x5900, 8);
    struct costs_sample sample = {
        .ns = 600 * US, .most_ns = 600 * US, .clock_ns = 300 * US, .queued = 1, .crowded = 1};

    for (int i = 0; i < 40; i++)
        learn(key, sample);
    CHECK("what the clock says", is_near(expected(key), 300 * US));
}

/* --- measured alone, then beside others ------------------------------------------------------- */

static void test_exclusive_measurement_is_kept(void)
{
    struct costs_key key = costs_key(0x6000, 8), in_turns = costs_key(0x6001, 8);

    learn_alone(key, 50 * US);
    for (int i = 0; i < 20; i++)
        learn_queued(key, 2 * MS, MS);
    CHECK_EQUAL("its state", make(key)->state, COST_MEASURED);
    CHECK_EQUAL("its expectation", expected(key), 50 * US);
    learn_alone(key, 70 * US);
    CHECK_EQUAL("and its mean", expected(key), 60 * US);
    learn_alone(in_turns, 8 * MS);
    random_state = 9;
    for (int i = 0; i < 1000; i++) {
        learn_in_turns(in_turns, 8 * MS, MS);
        CHECK_EQUAL("as long as the clock is near it", expected(in_turns), 8 * MS);
    }
}

/* How many measurements it takes until the expectation changes. */
static int needed(struct costs_key key, int64_t ns, int64_t clock_ns)
{
    int64_t before = expected(key);
    int count = 0;

    while (expected(key) == before && count++ < 1000)
        learn_queued(key, ns, clock_ns);
    return count;
}

static void test_many_contradicting_measurements_replace_it(void)
{
    struct costs_key longer = costs_key(0x6100, 8), shorter = costs_key(0x6101, 8);
    struct costs_key again = costs_key(0x6102, 8);

    learn_alone(longer, 50 * US);
    learn_alone(shorter, 500 * US);
    learn_alone(again, 50 * US);
    CHECK_EQUAL("longer ones", needed(longer, 200 * US, 100 * US), 32);
    CHECK_EQUAL("by what they took", expected(longer), 200 * US);
    CHECK_EQUAL("shorter ones", needed(shorter, 200 * US, 100 * US), 32);
    CHECK_EQUAL("by what they took", expected(shorter), 200 * US);
    CHECK_EQUAL("which is the same again and again", make(shorter)->state, COST_SURE);
    for (int i = 0; i <= 1000; i++) {
        if (i % 31)
            learn_queued(again, 800 * US, 400 * US);
        else
            learn_alone(again, 50 * US);
        CHECK_EQUAL("not if one was measured alone", expected(again), 50 * US);
    }
}

static void test_first_noted_launch_counts_as_seen(void)
{
    struct costs_key key = costs_key(0x6200, 8), known = costs_key(0x6201, 8);

    costs_note_first(&costs, make(key), &key, 90 * US);
    CHECK_EQUAL("so long at most", expected(key), 90 * US);
    CHECK_EQUAL("it was seen", make(key)->state, COST_SEEN);
    CHECK_EQUAL("its function, too", expected(costs_key(0x6200, 9)), 90 * US);
    learn_queued(key, 80 * US, 40 * US);
    CHECK_EQUAL("then what is measured", expected(key), 80 * US);
    costs_note_first(&costs, make(key), &known, 5 * MS);
    CHECK_EQUAL("nothing of an entry that is another's", expected(key), 80 * US);
}

static void test_doubtful_expectation_needs_few_contradictions(void)
{
    struct costs_key key = costs_key(0x1000, 8);

    learn_alone(key, 16 * MS);
    costs_doubt(&costs);
    for (int i = 0; i < 3; i++)
        learn_queued(key, 16 * MS, 8 * MS);
    CHECK("three do not", expected(key) == 16 * MS);
    learn_queued(key, 16 * MS, 8 * MS);
    CHECK("four do", expected(key) == 8 * MS);
    learn_alone(key, 9 * MS);
    CHECK("a measurement alone replaces it", expected(key) == 9 * MS);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_new_shape_is_expected_to_take_the_guess,
        test_each_shape_of_a_function_has_its_own_entry,
        test_new_shape_inherits_its_functions_duration,
        test_expectation_grows_while_first_launch_is_pending,
        test_only_a_guess_grows,
        test_exclusive_measurements_give_the_mean,
        test_first_exclusive_measurement_replaces_shared_ones,
        test_changed_duration_restarts_the_mean,
        test_expectations_are_bounded,
        test_work_shorter_than_a_turn_takes_its_shortest_time,
        test_work_spanning_turns_takes_the_clocks_time,
        test_work_as_long_as_a_turn_takes_its_shortest_time,
        test_clock_gives_no_more_than_the_shortest_time,
        test_without_clock_the_shortest_time_counts,
        test_known_time_of_others_is_subtracted,
        test_varying_work_takes_the_mean,
        test_work_with_some_short_runs_takes_the_mean,
        test_long_runs_beside_contradict_short_ones_alone,
        test_long_run_makes_a_short_time_alone_doubtful,
        test_mean_of_different_runs_counts_each,
        test_waits_for_a_time_slice_do_not_contradict_a_time_alone,
        test_short_work_takes_its_shortest_time_if_others_are_uncertain,
        test_idle_stream_measurements_weigh_less,
        test_launch_latency_is_subtracted_only_without_better_data,
        test_random_waits_do_not_count_as_duration,
        test_longer_duration_is_learned,
        test_other_streams_do_not_make_measurements_alike,
        test_exclusive_measurement_is_kept,
        test_many_contradicting_measurements_replace_it,
        test_doubtful_expectation_needs_few_contradictions,
        test_first_noted_launch_counts_as_seen,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        memset(&costs, 0, sizeof(costs));
        tests[i]();
    }
    return check_end();
}
