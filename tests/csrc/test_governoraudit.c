/* SPDX-License-Identifier: Apache-2.0 */
/* test_governoraudit.c -- what launches took beside what was paid, and what comes of that. */
#include "governor_room.h"

static void test_corrections_are_paid_and_given_back(void)
{
    struct governor governor = new_governor();

    buy(&governor, 2 * MS, 1000 * MS);
    governor_correct(&governor, 10 * MS, 1);
    CHECK_EQUAL("paid", shared.budget_ns, BURST - 12 * MS);
    CHECK_EQUAL("and counted", shared.busy_ns, 12 * MS);
    governor_correct(&governor, -4 * MS, 1);
    CHECK_EQUAL("given back", shared.budget_ns, BURST - 8 * MS);
    CHECK_EQUAL("and not counted", shared.busy_ns, 8 * MS);
    governor_correct(&governor, 500 * MS, 1);
    CHECK_EQUAL("in full, if it is long", shared.budget_ns, BURST - 508 * MS);
    governor_correct(&governor, 100000 * MS, 1);
    CHECK_EQUAL("a minute at most", shared.budget_ns, -60000 * MS);
    governor_correct(&governor, 1 * MS, 1);
    CHECK_EQUAL("which stays", shared.budget_ns, -60000 * MS);
}

static void test_what_was_charged_by_mistake_is_given_back_as_far_as_it_is_owed(void)
{
    struct governor governor = new_governor();

    buy(&governor, 2 * MS, 1000 * MS);
    governor_correct(&governor, 10 * MS, 1);
    governor_forgive(&governor, 4 * MS);
    CHECK_EQUAL("given back", shared.budget_ns, BURST - 8 * MS);
    CHECK_EQUAL("and not counted", shared.busy_ns, 8 * MS);
    governor_forgive(&governor, 400 * MS);
    CHECK_EQUAL("what was waited for is gone", shared.budget_ns, 0);
    CHECK_EQUAL("as little is not counted", shared.busy_ns, 8 * MS - 6 * MS);
    shared.budget_ns = 1 * MS;
    governor_forgive(&governor, 400 * MS);
    CHECK_EQUAL("who owes nothing is given nothing", shared.budget_ns, 1 * MS);
}

static void test_streams_that_overlap_pay_less(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, 1 * MS, 1);
    shared.budget_ns = 1;
    shared.refilled_ns = 1000 * MS;
    buy(&governor, 16 * MS, 1000 * MS);
    CHECK("a quarter", shared.budget_ns < -396 * MS / 100 && shared.budget_ns > -404 * MS / 100);
    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, 4 * MS + MS / 10, 1);
    shared.budget_ns = 1;
    governor.finished_ns = governor.bought_ns;
    buy(&governor, 4 * MS, 1000 * MS);
    CHECK_EQUAL("what is so little more is nothing", shared.budget_ns, 1 - 4 * MS);
}

static void test_how_streams_overlap_exactly_counts_more_than_an_estimate(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, 2 * MS, 0);
    CHECK_EQUAL("an estimate", governor.overlap, CLOCK_WHOLE / 2);
    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, i % 5 ? 2 * MS : 1 * MS, i % 5 == 0);
    CHECK_EQUAL("exactly", governor.overlap, CLOCK_WHOLE / 4);
    CHECK("it is certain", !governor_wants_quiet(&governor));
    for (int i = 0; i < 3000; i++)
        governor_overlap(&governor, 4 * MS, 2 * MS, 0);
    CHECK("or not any more", governor_wants_quiet(&governor));
    CHECK("which is forgotten after a while", governor.overlap > CLOCK_WHOLE / 5 * 2);
}

static void test_a_quiet_moment_suffices_to_know_how_streams_overlap(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, 8 * MS, 0);
    CHECK_EQUAL("a wrong estimate", governor.overlap, 2 * CLOCK_WHOLE);
    governor.beside = 1;
    for (int i = 0; i < 16; i++)
        governor_overlap(&governor, MS / 10, MS / 40, 1);
    CHECK("very little was measured", governor_wants_quiet(&governor));
    for (int i = 0; i < 8; i++)
        governor_overlap(&governor, 1 * MS, MS / 4, 1);
    CHECK("it is certain", !governor_wants_quiet(&governor));
    CHECK_EQUAL("and counts", governor.overlap, CLOCK_WHOLE / 4);
    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, 8 * MS, 0);
    CHECK_EQUAL("afterwards, too", governor.overlap, CLOCK_WHOLE / 4);
}

static void test_how_streams_overlap_is_measured_by_pieces_of_the_size_that_is_bought(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 3; i++)
        governor_overlap(&governor, 1 * MS, 8 * MS, 0);
    CHECK_EQUAL("as much is bought less", governor.overlap, 8 * CLOCK_WHOLE);
    for (int i = 0; i < 2; i++)
        governor_overlap(&governor, 1 * MS, 16 * MS, 0);
    CHECK_EQUAL("what was seen before says nothing of that", governor.overlap, 16 * CLOCK_WHOLE);
}

static void test_costs_that_were_too_low_are_made_up_for_until_it_is_measured(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 10; i++)
        governor_overlap(&governor, 4 * MS, 8 * MS, 0);
    governor_overlap_anew(&governor);
    CHECK_EQUAL("as before", governor.overlap, 2 * CLOCK_WHOLE);
    CHECK("but it is to be measured", governor_wants_quiet(&governor));
}

static void test_what_was_exact_for_a_moment_does_not_stand_in_the_way_of_an_estimate(void)
{
    struct governor governor = new_governor();

    governor.beside = governor.several = 1;
    governor_overlap(&governor, MS / 10, MS / 10, 1);
    CHECK_EQUAL("too little to count", governor.overlap, 0);
    CHECK("so it is to be measured", governor_wants_quiet(&governor));
    for (int i = 0; i < 10; i++)
        governor_overlap(&governor, 4 * MS, 1 * MS, 0);
    CHECK("an estimate", governor.overlap > 0 && governor.overlap < CLOCK_WHOLE / 3);
    CHECK("which is none for ever", governor_wants_quiet(&governor));
}

static void test_what_was_paid_by_costs_of_before_says_nothing_of_how_streams_overlap(void)
{
    struct governor governor = new_governor();
    struct governor_period period = {.paid_ns = 100 * MS,
                                     .from_ns = 1000 * MS,
                                     .given_ns = 999 * MS,
                                     .end_ns = 1025 * MS,
                                     .several = 1,
                                     .rate = CLOCK_WHOLE,
                                     .alone = 1};

    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 4 * MS, MS / 6, 0);
    CHECK("it seemed to take a part of what was paid", governor.overlap > 0);
    governor.bought_ns = 100 * MS;
    governor_overlap_anew(&governor);
    CHECK_EQUAL("which is none of what is paid now", governor.overlap, 0);
    governor_period(&governor, &period);
    CHECK_EQUAL("this was paid before, too", governor.overlap, 0);
    governor_finish(&governor, 100 * MS, 1025 * MS);
    period.paid_ns = 50 * MS;
    governor_period(&governor, &period);
    CHECK_EQUAL("and this after it", governor.overlap, CLOCK_WHOLE / 2);
}

/* A period that began when the one before was done, at *from_ns*, and was given before that. */
static struct governor_period follows(int64_t paid_ns, int64_t took_ns, int alone)
{
    static uint64_t end_ns = 1000 * MS;
    struct governor_period period = {.paid_ns = (uint64_t) paid_ns,
                                     .from_ns = end_ns,
                                     .given_ns = end_ns,
                                     .end_ns = end_ns + (uint64_t) took_ns,
                                     .rate = CLOCK_WHOLE,
                                     .alone = alone};

    end_ns = period.end_ns;
    return period;
}

static int take(struct governor *governor, struct governor_period period)
{
    return governor_period(governor, &period);
}

static void test_what_takes_longer_than_was_paid_is_paid(void)
{
    struct governor governor = new_governor();

    shared.budget_ns = 0;
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL("as paid", take(&governor, follows(2 * MS, 2 * MS + MS / 10, 1)), 0);
    CHECK_EQUAL("nothing to pay", shared.budget_ns, 0);
    governor = new_governor();
    CHECK_EQUAL("ten times as long", take(&governor, follows(2 * MS, 20 * MS, 1)), 1);
    CHECK_EQUAL("is paid", shared.budget_ns, -18 * MS);
    governor = new_governor();
    governor_correct(&governor, 18 * MS, 1);
    CHECK_EQUAL("once", take(&governor, follows(2 * MS, 20 * MS, 1)), 0);
    governor = new_governor();
    CHECK_EQUAL("beside others it may be theirs", take(&governor, follows(20 * MS, 40 * MS, 0)), 0);
    CHECK_EQUAL("but not all of it", take(&governor, follows(2 * MS, 60 * MS, 0)), 1);
    CHECK_EQUAL("is paid", shared.budget_ns, -16 * MS);
}

static void test_a_late_correction_is_none_of_the_next_period(void)
{
    struct governor governor = new_governor();
    struct governor_period first = follows(24 * MS, 20 * MS, 1);
    struct governor_period next = follows(8 * MS, 8 * MS, 1);

    take(&governor, first);
    governor_correct(&governor, -9 * MS, first.given_ns - 1);
    CHECK_EQUAL("together it is as paid", take(&governor, next), 0);
    take(&governor, first);
    governor_correct(&governor, -9 * MS, first.given_ns - 1);
    next.giving_ns = 1;
    CHECK_EQUAL("after a pause this one is", take(&governor, next), 0);
    take(&governor, first);
    governor_correct(&governor, -10 * MS, first.given_ns + 1);
    CHECK_EQUAL("but not if it was paid less", take(&governor, next), 1);
}

static void test_nothing_takes_longer_than_the_time_in_which_it_ran(void)
{
    struct governor governor = new_governor();
    struct governor_period period = follows(2 * MS, 200 * MS, 1);

    governor_correct(&governor, 680 * MS, 1);
    CHECK_EQUAL("it is longer than was paid at first", take(&governor, period), 0);
    CHECK_EQUAL("but not that long", shared.budget_ns, -198 * MS);
    CHECK_EQUAL("measurements of what was begun by then say nothing more", governor.settled_ns,
                period.given_ns);
    governor = new_governor();
    governor_correct(&governor, 680 * MS, 1);
    period.alone = 0;
    take(&governor, period);
    CHECK_EQUAL("beside others nobody knows", shared.budget_ns, -680 * MS);
    governor = new_governor();
    governor_correct(&governor, 680 * MS, 1);
    period.alone = 1;
    period.end_ns = 0;
    take(&governor, period);
    CHECK_EQUAL("nor without an end", shared.budget_ns, -680 * MS);
}

static void test_what_may_have_been_a_pause_is_not_paid(void)
{
    struct governor governor = new_governor();
    struct governor_period period = follows(2 * MS, 20 * MS, 1);

    period.from_ns = 0;
    CHECK_EQUAL("nobody knows when it began", take(&governor, period), 0);
    period.from_ns = period.end_ns - 20 * MS;
    period.giving_ns = 15 * MS;
    CHECK_EQUAL("it was given slowly", take(&governor, period), 0);
    CHECK_EQUAL("nothing to pay", shared.budget_ns, 0);
    period.giving_ns = 12 * MS;
    CHECK_EQUAL("not so slowly", take(&governor, period), 1);
    CHECK_EQUAL("is paid in part", shared.budget_ns, -6 * MS);
    governor = new_governor();
    period.giving_ns = 9 * MS;
    CHECK_EQUAL("there was always something to do", take(&governor, period), 1);
    CHECK_EQUAL("is paid", shared.budget_ns, -18 * MS);
    CHECK_EQUAL("measurements of what was begun by then say nothing more", governor.settled_ns,
                period.given_ns);
}

static void test_after_that_there_is_no_more_than_a_launch_until_one_is_as_paid(void)
{
    struct governor governor = new_governor();

    buy(&governor, 100000, 1000 * MS);
    take(&governor, follows(2 * MS, 20 * MS, 1));
    CHECK_EQUAL("no credit is left", credit_left(&governor.credit), 0);
    shared.budget_ns = 100 * MS;
    governor.finished_ns = governor.bought_ns;
    CHECK_EQUAL("one", buy(&governor, 100000, 1000 * MS), GOVERNOR_GO);
    CHECK_EQUAL("and no credit", credit_left(&governor.credit), 0);
    CHECK_EQUAL("two", buy(&governor, 100000, 1000 * MS), GOVERNOR_GO);
    CHECK_EQUAL("not three", buy(&governor, 100000, 1000 * MS), GOVERNOR_FULL);
    take(&governor, follows(2 * MS, 2 * MS, 1));
    CHECK_EQUAL("many", buy(&governor, 100000, 1000 * MS), GOVERNOR_GO);
    CHECK("at once", credit_left(&governor.credit) > 0);
}

static void test_several_streams_are_paid_by_what_all_of_them_took(void)
{
    struct governor governor = new_governor();
    struct governor_period period = follows(4 * MS, 3 * MS, 1);

    period.several = 1;
    take(&governor, period);
    CHECK_EQUAL("too much is given back", shared.budget_ns, 1 * MS);
    governor = new_governor();
    governor_correct(&governor, 30 * MS, 1);
    period = follows(4 * MS, 9 * MS, 1);
    period.several = 1;
    take(&governor, period);
    CHECK_EQUAL("too little is paid, whatever a launch seemed to take", shared.budget_ns, -5 * MS);
    governor = new_governor();
    period = follows(4 * MS, 9 * MS, 1);
    period.several = 1;
    period.giving_ns = 6 * MS;
    take(&governor, period);
    CHECK_EQUAL("between the two it can be as paid", shared.budget_ns, 0);
    governor = new_governor();
    period = follows(4 * MS, 90 * MS, 0);
    period.several = 1;
    CHECK_EQUAL("beside others nobody knows", take(&governor, period), 1);
    CHECK("unless it is much", shared.budget_ns < -40 * MS && shared.budget_ns > -60 * MS);
}

static void test_streams_that_take_longer_together_pay_more(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 100; i++)
        governor_overlap(&governor, 1 * MS, 10 * MS, 1);
    CHECK_EQUAL("ten times", (governor.overlap + CLOCK_WHOLE / 2) / CLOCK_WHOLE, 10);
    for (int i = 0; i < 1000; i++)
        governor_overlap(&governor, 4 * MS, 4 * MS, 1);
    CHECK_EQUAL("as long as they do", governor.overlap, 0);
}

static void test_what_should_be_done_and_is_not_is_charged_until_it_is(void)
{
    struct governor governor = new_governor();

    governor_overdue(&governor, 2 * MS, 3 * MS);
    CHECK_EQUAL("not yet", shared.budget_ns, 0);
    governor_overdue(&governor, 2 * MS, 5 * MS);
    CHECK_EQUAL("so much", shared.budget_ns, -3 * MS);
    governor_overdue(&governor, 2 * MS, 9 * MS);
    CHECK_EQUAL("and more", shared.budget_ns, -7 * MS);
    governor_overdue(&governor, 2 * MS, 9000 * MS);
    CHECK_EQUAL("not for ever, since it may wait for somebody", shared.budget_ns, -250 * MS);
    governor_overdue(&governor, 0, 0);
    CHECK_EQUAL("then it is given back", shared.budget_ns, 0);
}

int main(void)
{
    test_corrections_are_paid_and_given_back();
    test_what_was_charged_by_mistake_is_given_back_as_far_as_it_is_owed();
    test_streams_that_overlap_pay_less();
    test_how_streams_overlap_exactly_counts_more_than_an_estimate();
    test_a_quiet_moment_suffices_to_know_how_streams_overlap();
    test_how_streams_overlap_is_measured_by_pieces_of_the_size_that_is_bought();
    test_costs_that_were_too_low_are_made_up_for_until_it_is_measured();
    test_what_was_exact_for_a_moment_does_not_stand_in_the_way_of_an_estimate();
    test_what_was_paid_by_costs_of_before_says_nothing_of_how_streams_overlap();
    test_what_takes_longer_than_was_paid_is_paid();
    test_a_late_correction_is_none_of_the_next_period();
    test_nothing_takes_longer_than_the_time_in_which_it_ran();
    test_what_may_have_been_a_pause_is_not_paid();
    test_after_that_there_is_no_more_than_a_launch_until_one_is_as_paid();
    test_several_streams_are_paid_by_what_all_of_them_took();
    test_streams_that_take_longer_together_pay_more();
    test_what_should_be_done_and_is_not_is_charged_until_it_is();
    return check_end();
}
