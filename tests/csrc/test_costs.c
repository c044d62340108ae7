/* SPDX-License-Identifier: Apache-2.0 */
/* test_costs.c -- what launches cost, and how that is learned. */
#include "check.h"
#include "clock.h"
#include "costs.h"

#define MS INT64_C(1000000)

static struct costs costs;

static int64_t learn(uint64_t key, struct costs_quote quote, int64_t elapsed_ns, uint32_t rate)
{
    return costs_learn(
        &costs, key,
        &(struct costs_sample) {.paid_ns = quote.cost_ns,
                                .stands_for = quote.stands_for,
                                .elapsed_ns = elapsed_ns,
                                .rate = rate,
                                .sharers = rate < CLOCK_WHOLE - 1 ? CLOCK_WHOLE / rate : 2,
                                .alone = rate == CLOCK_WHOLE});
}

/* Launch and measure as often as it takes for the key to be known. */
static void settle(uint64_t key, int64_t elapsed_ns)
{
    for (int i = 0; i < 16; i++)
        learn(key, costs_ask(&costs, key, COSTS_GUESS_NS), elapsed_ns, CLOCK_WHOLE);
}

static void test_a_first_launch_pays_a_guess_and_is_corrected(void)
{
    uint64_t key = costs_key(0x1000, 8);
    struct costs_quote quote = costs_ask(&costs, key, COSTS_GUESS_NS);

    CHECK_EQUAL("the guess", quote.cost_ns, COSTS_GUESS_NS);
    CHECK_EQUAL("it is measured, for itself", quote.stands_for, COSTS_GUESSED | 1);
    CHECK_EQUAL("what was short", learn(key, quote, 5 * MS, CLOCK_WHOLE), 5 * MS - COSTS_GUESS_NS);
    CHECK_EQUAL("then it is known", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 5 * MS);
    CHECK_EQUAL("another grid is another key",
                costs_ask(&costs, costs_key(0x1000, 9), COSTS_GUESS_NS).cost_ns, COSTS_GUESS_NS);
}

static void test_few_launches_are_under_way_that_nobody_has_seen_finish(void)
{
    struct costs_quote quotes[8];
    uint64_t key = costs_key(0x2000, 8), other = costs_key(0x2001, 8);

    quotes[0] = costs_ask(&costs, key, COSTS_GUESS_NS);
    CHECK_EQUAL("one of a key", costs_ask(&costs, key, COSTS_GUESS_NS).stands_for, COSTS_CROWDED);
    for (uint64_t i = 1; i < 2; i++) {
        quotes[i] = costs_ask(&costs, costs_key(0x2000, 8 + i), COSTS_GUESS_NS);
        CHECK_EQUAL("two of different ones", quotes[i].cost_ns, COSTS_GUESS_NS);
    }
    CHECK_EQUAL("not three", costs_ask(&costs, other, COSTS_GUESS_NS).stands_for, COSTS_CROWDED);
    learn(costs_key(0x2000, 9), quotes[1], -1, CLOCK_WHOLE);
    quotes[1] = costs_ask(&costs, other, COSTS_GUESS_NS);
    CHECK_EQUAL("one that failed is none", quotes[1].cost_ns, COSTS_GUESS_NS);
    learn(key, quotes[0], 5 * MS, CLOCK_WHOLE);
    CHECK_EQUAL("one that was seen is known", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns,
                5 * MS);
    CHECK_EQUAL("one that never finishes", costs_ask(&costs, other, COSTS_GUESS_NS).stands_for,
                COSTS_CROWDED);
    CHECK_EQUAL("is not waited for for ever",
                costs_ask_anyway(&costs, other, COSTS_GUESS_NS).cost_ns, 4 * MS);
    CHECK_EQUAL("nor ever again", costs_ask(&costs, other, COSTS_GUESS_NS).cost_ns, 4 * MS);
}

/* Launch so often, each measurement being known before the next: how many there were. */
static int launch_often(uint64_t key, int64_t elapsed_ns, int times, uint64_t *stood_for)
{
    int measured = 0;

    *stood_for = 0;
    for (int i = 0; i < times; i++) {
        struct costs_quote quote = costs_ask(&costs, key, COSTS_GUESS_NS);

        measured += quote.stands_for != 0;
        *stood_for += quote.stands_for;
        if (quote.stands_for)
            learn(key, quote, elapsed_ns, CLOCK_WHOLE);
    }
    return measured;
}

static void test_short_launches_are_measured_now_and_then(void)
{
    uint64_t key = costs_key(0x3000, 8), shorter = costs_key(0x3001, 8);
    uint64_t stood_for;
    int measured;

    settle(key, 60000);
    measured = launch_often(key, 60000, 640000, &stood_for);
    CHECK("less than one in a hundred", measured > 3500 && measured < 4500);
    CHECK("and no launch is forgotten", stood_for > 620000 && stood_for < 660000);
    settle(shorter, 2000);
    measured = launch_often(shorter, 2000, 640000, &stood_for);
    CHECK("what comes more often is measured less often", measured > 900 && measured < 1100);
    CHECK("nor is any of it forgotten", stood_for > 610000 && stood_for < 670000);
}

static void test_few_short_launches_are_being_measured_at_a_time(void)
{
    uint64_t key = costs_key(0x3002, 8);
    struct costs_quote quotes[64];
    uint64_t stood_for = 0;
    int measured = 0;

    settle(key, 15000);
    learn(key, costs_ask(&costs, key, COSTS_GUESS_NS), 30000, CLOCK_WHOLE);
    for (int i = 0; i < 100000; i++) {
        quotes[measured % 64] = costs_ask(&costs, key, COSTS_GUESS_NS);
        stood_for += quotes[measured % 64].stands_for;
        measured += quotes[measured % 64].stands_for != 0;
    }
    CHECK_EQUAL("as many as say something", measured, 8);
    for (int i = 0; i < measured; i++)
        learn(key, quotes[i], 15000, CLOCK_WHOLE);
    while (!(quotes[0] = costs_ask(&costs, key, COSTS_GUESS_NS)).stands_for)
        ;
    stood_for += quotes[0].stands_for;
    CHECK("and the next one stands for all since", stood_for > 95000 && stood_for < 105000);
}

static void test_events_are_not_exact(void)
{
    uint64_t key = costs_key(0x3003, 8);

    settle(key, 3000);
    for (int i = 0; i < 20; i++) {
        learn(key, costs_ask(&costs, key, COSTS_GUESS_NS), i % 2 ? 2600 : 3400, CLOCK_WHOLE);
        CHECK("half a microsecond is no other cost", costs_know(&costs, key).certain);
    }
    learn(key, costs_ask(&costs, key, COSTS_GUESS_NS), 5000, CLOCK_WHOLE);
    CHECK("but two are", !costs_know(&costs, key).certain);
}

static void test_long_launches_are_measured_each(void)
{
    uint64_t key = costs_key(0x4000, 8);
    struct costs_quote quote;

    settle(key, 8 * MS);
    for (int i = 0; i < 10; i++) {
        quote = costs_ask(&costs, key, COSTS_GUESS_NS);
        CHECK_EQUAL("measured", quote.stands_for, 1);
        CHECK_EQUAL("exactly corrected", learn(key, quote, 8 * MS + i, CLOCK_WHOLE),
                    8 * MS + i - quote.cost_ns);
    }
}

static struct costs_quote next_measured(uint64_t key)
{
    struct costs_quote quote;

    do
        quote = costs_ask(&costs, key, COSTS_GUESS_NS);
    while (!quote.stands_for);
    return quote;
}

static void test_one_long_measurement_of_a_short_launch_is_not_believed(void)
{
    uint64_t key = costs_key(0x5000, 8);
    struct costs_quote quote;
    int64_t short_ns;

    settle(key, 15000);
    CHECK_EQUAL("nothing to correct", learn(key, next_measured(key), 3 * MS, CLOCK_WHOLE), 0);
    CHECK_EQUAL("the cost stays", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 15000);
    learn(key, next_measured(key), 15000, CLOCK_WHOLE);
    learn(key, next_measured(key), 3 * MS, CLOCK_WHOLE);
    learn(key, next_measured(key), 3 * MS, CLOCK_WHOLE);
    CHECK_EQUAL("nor are two in a row", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 15000);
    quote = next_measured(key);
    short_ns = learn(key, quote, 3 * MS, CLOCK_WHOLE);
    CHECK_EQUAL("three are", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 3 * MS);
    CHECK("and speak for all that ran meanwhile", short_ns >= 3 * (3 * MS - 15000));
}

static const struct row {
    int64_t known_ns;
    int64_t elapsed_ns;
    uint32_t sharers;
    int64_t expected_ns;
    const char *why;
} beside_others[] = {
    {280000, 1280000, 2, 280000, "280 us as known"},
    {8 * MS, 16 * MS, 2, 8 * MS, "8 ms"},
    {0, 16 * MS, 2, 8 * MS, "8 ms, not known yet"},
    {0, 80 * MS, 4, 20 * MS, "20 ms beside three"},
    {20 * MS, 60 * MS, 2, 30 * MS, "20 ms that became 30"},
    {20 * MS, 20 * MS, 2, 10 * MS, "20 ms that became 10"},
};

static void test_beside_others_a_measurement_is_an_estimate(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(beside_others); i++) {
        const struct row *row = &beside_others[i];
        int64_t cost;
        uint64_t key = costs_key(0x6000 + i, 0);

        if (row->known_ns)
            learn(key, next_measured(key), row->known_ns, CLOCK_WHOLE);
        for (int times = 0; times < 64; times++)
            learn(key, next_measured(key), row->elapsed_ns, CLOCK_WHOLE / row->sharers);
        cost = costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns;
        CHECK(row->why, llabs(cost - row->expected_ns) <= row->expected_ns / 10);
    }
}

static void test_what_was_measured_alone_twice_is_certain(void)
{
    uint64_t key = costs_key(0xa000, 0);

    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE);
    CHECK("once is not enough", costs_want_quiet(&costs, key));
    learn(key, next_measured(key), 16 * MS, CLOCK_WHOLE / 2);
    CHECK("nor is another beside others", costs_want_quiet(&costs, key));
    learn(key, next_measured(key), 8 * MS + 100000, CLOCK_WHOLE);
    CHECK("twice the same is", !costs_want_quiet(&costs, key));
    costs_distrust(&costs);
    CHECK("until somebody knows better", costs_want_quiet(&costs, key));
    CHECK_EQUAL("it still costs that", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns / MS, 8);
    CHECK("a key that is not there wants nothing", !costs_want_quiet(&costs, key + 1));
    key = costs_key(0xa001, 0);
    learn(key, next_measured(key), 400 * MS, CLOCK_WHOLE / 2);
    CHECK("what is longer than any moment is its mean", !costs_want_quiet(&costs, key));
}

static void test_short_ones_that_are_the_same_beside_others_are_certain(void)
{
    uint64_t key = costs_key(0xb000, 0);

    for (int i = 0; i < 3; i++) {
        learn(key, next_measured(key), 1280000, CLOCK_WHOLE / 2);
        learn(key, next_measured(key), 280000, CLOCK_WHOLE / 2);
    }
    learn(key, next_measured(key), 280000, CLOCK_WHOLE / 2);
    CHECK("four times the least", !costs_want_quiet(&costs, key));
    CHECK_EQUAL("is the cost", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 280000);
    key = costs_key(0xb001, 0);
    for (int i = 0; i < 9; i++)
        learn(key, next_measured(key), 1280000, CLOCK_WHOLE / 2);
    CHECK("with a turn in each nobody knows", costs_want_quiet(&costs, key));
}

static void test_the_least_of_short_ones_counts_more_than_what_a_clock_makes_of_long_ones(void)
{
    uint64_t key = costs_key(0xb002, 0);

    for (int i = 0; i < 4; i++)
        learn(key, next_measured(key), 1500000, CLOCK_WHOLE / 5);
    CHECK("a mean that is too little", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns < 400000);
    for (int i = 0; i < 4; i++) {
        learn(key, next_measured(key), 500000, CLOCK_WHOLE / 5);
        CHECK_EQUAL("the least", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 500000);
        learn(key, next_measured(key), 700000, CLOCK_WHOLE / 5);
    }
    CHECK_EQUAL("is the cost", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 500000);
    CHECK("and certain", costs_know(&costs, key).certain);
}

static void test_what_is_never_the_same_is_its_mean(void)
{
    uint64_t key = costs_key(0xc000, 0);
    int64_t cost;

    for (int i = 0; i < 40; i++)
        learn(key, next_measured(key), (8 + i % 5) * MS, CLOCK_WHOLE);
    cost = costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns;
    CHECK("about the mean", cost > 9 * MS && cost < 11 * MS);
    CHECK("is certain", !costs_want_quiet(&costs, key));
    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE / 2);
    CHECK("even if one is less", !costs_want_quiet(&costs, key));
}

static void test_what_only_seemed_to_vary_is_measured_alone_again(void)
{
    uint64_t key = costs_key(0xc800, 0);

    for (int i = 0; i < 40; i++)
        learn(key, next_measured(key), (1 + i % 2) * MS, CLOCK_WHOLE);
    for (int i = 0; i < 255; i++)
        learn(key, next_measured(key), 1 * MS, CLOCK_WHOLE / 2);
    CHECK("it may vary", !costs_want_quiet(&costs, key));
    learn(key, next_measured(key), 1 * MS, CLOCK_WHOLE / 2);
    CHECK("or not", costs_want_quiet(&costs, key));
    CHECK("which is no reason to forget what is known", costs_know(&costs, key).certain);
    for (int i = 0; i < 16; i++)
        learn(key, next_measured(key), 1 * MS, CLOCK_WHOLE);
    CHECK("now that is known", !costs_want_quiet(&costs, key));
    CHECK_EQUAL("it did not", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 1 * MS);
}

static void test_what_is_certain_stays_as_long_as_it_can_be(void)
{
    uint64_t key = costs_key(0xd000, 0);

    settle(key, 8 * MS);
    for (int i = 0; i < 100; i++)
        learn(key, next_measured(key), (8 + i % 9) * MS, CLOCK_WHOLE / 2);
    CHECK("by turns, once, twice or not at all", !costs_want_quiet(&costs, key));
    CHECK_EQUAL("it is as it was", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 8 * MS);
    learn(key, next_measured(key), 21 * MS, CLOCK_WHOLE / 2);
    CHECK("too long for two", costs_want_quiet(&costs, key));
    settle(key, 8 * MS);
    for (int i = 0; i < 20; i++)
        learn(key, next_measured(key), 18 * MS, CLOCK_WHOLE - 1);
    CHECK("too long by their clock", costs_want_quiet(&costs, key));
    settle(key, 8 * MS);
    settle(key, 8 * MS);
    learn(key, next_measured(key), 7 * MS, CLOCK_WHOLE / 2);
    CHECK("too short for anybody", costs_want_quiet(&costs, key));
    CHECK("which is believed at once", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns <= 7 * MS);
}

static void test_a_clock_that_lies_changes_nothing_that_is_certain(void)
{
    uint64_t key = costs_key(0x7000, 8);

    settle(key, 8 * MS);
    for (int i = 0; i < 100; i++)
        learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE / 8);
    CHECK_EQUAL("as it was measured alone", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns, 8 * MS);
}

static void test_estimates_are_settled_once_the_cost_is_certain(void)
{
    uint64_t key = costs_key(0x11000, 0);

    for (int i = 0; i < 4; i++)
        learn(key, next_measured(key), 48 * MS, CLOCK_WHOLE / 2);
    CHECK_EQUAL("nothing is certain", costs_settle(&costs, key), 0);
    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE);
    CHECK_EQUAL("nor yet", costs_settle(&costs, key), 0);
    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE);
    CHECK("four times 24 ms for 8", llabs(costs_settle(&costs, key) - 4 * 16 * MS) < 24 * MS);
    CHECK_EQUAL("once", costs_settle(&costs, key), 0);
    CHECK_EQUAL("a key that is not there", costs_settle(&costs, key + 1), 0);
    settle(key, 8 * MS);
    learn(key, next_measured(key), 4 * MS, CLOCK_WHOLE / 2);
    for (int i = 0; i < 4; i++)
        learn(key, next_measured(key), 48 * MS, CLOCK_WHOLE / 2);
    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE);
    learn(key, next_measured(key), 8 * MS, CLOCK_WHOLE);
    CHECK("certain again", costs_know(&costs, key).certain);
    CHECK_EQUAL("but it was not always so long", costs_settle(&costs, key), 0);
}

static void learn_in_one_of_several(uint64_t key, int64_t elapsed_ns, uint32_t rate)
{
    struct costs_quote quote = costs_ask(&costs, key, COSTS_GUESS_NS);

    costs_learn(&costs, key,
                &(struct costs_sample) {.paid_ns = quote.cost_ns,
                                        .stands_for = quote.stands_for,
                                        .elapsed_ns = elapsed_ns,
                                        .crowded = 1,
                                        .rate = rate,
                                        .sharers = 2});
}

static void test_what_is_certain_now_or_far_less_is_known_better(void)
{
    const struct costs_known none = {0}, most = {16 * MS, 0}, half = {8 * MS, 0},
                             less = {7 * MS, 0}, sure = {16 * MS, 1};

    CHECK("what is new", !costs_know_better(&none, &most));
    CHECK("half", !costs_know_better(&most, &half));
    CHECK("less", costs_know_better(&most, &less));
    CHECK("more", !costs_know_better(&less, &most));
    CHECK("certain", costs_know_better(&most, &sure));
    CHECK("as it was", !costs_know_better(&sure, &sure));
    CHECK("not certain any more", !costs_know_better(&sure, &most));
    CHECK_EQUAL("who was never met", costs_know(&costs, costs_key(0x12000, 0)).cost_ns, 0);
}

static void test_a_few_that_took_long_beside_others_change_nothing_that_is_certain(void)
{
    uint64_t key = costs_key(0x12000, 8);

    settle(key, 280000);
    for (int i = 0; i < 400; i++) {
        learn_in_one_of_several(key, i % 10 ? 280000 : 4400000, CLOCK_WHOLE - 1);
        CHECK("one in ten", costs_know(&costs, key).certain);
    }
    for (int i = 0; i < 40; i++)
        learn_in_one_of_several(key, 4400000, CLOCK_WHOLE - 1);
    CHECK("all of them do", !costs_know(&costs, key).certain);
}

static int64_t learn_queued(uint64_t key, int64_t elapsed_ns, int64_t queued_ns, int alone)
{
    struct costs_quote quote = costs_ask(&costs, key, COSTS_GUESS_NS);

    costs_learn(&costs, key,
                &(struct costs_sample) {.paid_ns = quote.cost_ns,
                                        .stands_for = quote.stands_for,
                                        .elapsed_ns = elapsed_ns,
                                        .queued_ns = queued_ns,
                                        .crowded = 1,
                                        .rate = alone ? CLOCK_WHOLE : CLOCK_WHOLE / 2,
                                        .sharers = 2,
                                        .alone = alone});
    return costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns;
}

static void test_what_waited_for_other_streams_took_no_longer_for_that(void)
{
    uint64_t key = costs_key(0xf000, 8);

    settle(key, 280000);
    for (int i = 1; i < 30; i++)
        CHECK_EQUAL("one of many in turn",
                    learn_queued(key, (i + 1) * 280000, i * 280000 + 4000, 1), 280000);
    for (int i = 1; i < 30; i++)
        CHECK_EQUAL("all at the same time", learn_queued(key, 280000, 276000, 1), 280000);
    CHECK("they are still certain", costs_know(&costs, key).certain);
    for (int i = 1; i < 30; i++)
        CHECK_EQUAL("beside others", learn_queued(key, 16 * MS, 15 * MS, 0), 280000);
    CHECK("and there, too", costs_know(&costs, key).certain);
    CHECK_EQUAL("longer than the wait says", learn_queued(key, 8 * MS, 6 * MS, 1), 2 * MS);
    CHECK_EQUAL("shorter than that", learn_queued(key, 1 * MS, 1 * MS, 1), 1 * MS);
    CHECK_EQUAL("more wait than time", learn_queued(key, 1 * MS, INT64_MAX, 1), 1 * MS);
}

static void test_nonsense_is_not_learned(void)
{
    uint64_t key = costs_key(0x8000, 8);

    settle(key, 8 * MS);
    CHECK_EQUAL("time that runs backwards", learn(key, next_measured(key), -1, CLOCK_WHOLE), 0);
    CHECK_EQUAL("a key that is not there", learn(costs_key(0x9000, 8), next_measured(key), 1, 1),
                0);
    learn(key, next_measured(key), INT64_MAX, CLOCK_WHOLE);
    CHECK("an hour at most", costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns <= 3600 * 1000 * MS);
    costs_forget(&costs, key);
    CHECK_EQUAL("what is forgotten is new", costs_ask(&costs, key, 123456).cost_ns, 123456);
}

static void test_two_keys_of_one_place_stay(void)
{
    uint64_t first = UINT64_C(5) << 40 | 1, second = UINT64_C(5) << 40 | 2;

    settle(first, 1 * MS);
    settle(second, 2 * MS);
    CHECK_EQUAL("one", costs_ask(&costs, first, COSTS_GUESS_NS).cost_ns, 1 * MS);
    CHECK_EQUAL("and the other", costs_ask(&costs, second, COSTS_GUESS_NS).cost_ns, 2 * MS);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_a_first_launch_pays_a_guess_and_is_corrected,
        test_few_launches_are_under_way_that_nobody_has_seen_finish,
        test_short_launches_are_measured_now_and_then,
        test_few_short_launches_are_being_measured_at_a_time,
        test_events_are_not_exact,
        test_long_launches_are_measured_each,
        test_one_long_measurement_of_a_short_launch_is_not_believed,
        test_beside_others_a_measurement_is_an_estimate,
        test_what_was_measured_alone_twice_is_certain,
        test_short_ones_that_are_the_same_beside_others_are_certain,
        test_the_least_of_short_ones_counts_more_than_what_a_clock_makes_of_long_ones,
        test_what_is_never_the_same_is_its_mean,
        test_what_only_seemed_to_vary_is_measured_alone_again,
        test_what_is_certain_stays_as_long_as_it_can_be,
        test_a_clock_that_lies_changes_nothing_that_is_certain,
        test_estimates_are_settled_once_the_cost_is_certain,
        test_what_is_certain_now_or_far_less_is_known_better,
        test_a_few_that_took_long_beside_others_change_nothing_that_is_certain,
        test_what_waited_for_other_streams_took_no_longer_for_that,
        test_nonsense_is_not_learned,
        test_two_keys_of_one_place_stay,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        memset(&costs, 0, sizeof(costs));
        tests[i]();
    }
    return check_end();
}
