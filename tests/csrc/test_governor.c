/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c -- budget, credit and what may be in flight, step by step. */
#include "check.h"
#include "governor.h"

#define MS       INT64_C(1000000)
#define HALF     (CLOCK_WHOLE / 2)
#define BURST    (2 * MS)
#define BEHIND   (50 * MS) /* at half of the device */
#define IN_LIMIT (8 * MS)

static struct usage_compute shared;
static struct usage_work work;
static const struct governor_share half = {.own = HALF, .limit = HALF};

static struct governor new_governor(void)
{
    memset(&shared, 0, sizeof(shared));
    memset(&work, 0, sizeof(work));
    return (struct governor) {.shared = &shared, .work = &work};
}

static enum governor_answer buy(struct governor *governor, int64_t cost_ns, uint64_t now)
{
    uint64_t until;

    return governor_buy(governor, &half, cost_ns, now, &until);
}

static void spend_all(struct governor *governor, uint64_t now)
{
    credit_take(&governor->credit);
    governor_finish(governor, governor_paid(governor), now);
}

static void test_credit_pays_for_launches_until_it_is_spent(void)
{
    struct governor governor = new_governor();
    int launches = 1;

    CHECK("nothing bought yet", !governor_pay(&governor, 1000));
    CHECK_EQUAL("bought", buy(&governor, 100000, 1000 * MS), GOVERNOR_GO);
    while (governor_pay(&governor, 100000))
        launches++;
    CHECK_EQUAL("launches of one purchase", launches, 20);
    CHECK_EQUAL("paid", governor_paid(&governor), 2 * MS);
    CHECK_EQUAL("from the budget", shared.budget_ns, BURST - 2 * MS);
    CHECK_EQUAL("published", work.begun, 2 * MS / WORK_UNIT_NS);
}

static void test_a_debt_is_waited_for_at_the_rate_of_the_share(void)
{
    struct governor governor = new_governor();
    uint64_t now = 1000 * MS;
    uint64_t until = 0;

    CHECK_EQUAL("any length may begin", buy(&governor, 20 * MS, now), GOVERNOR_GO);
    CHECK_EQUAL("then it is waited", governor_buy(&governor, &half, 20 * MS, now, &until),
                GOVERNOR_WAIT);
    CHECK_EQUAL("a little, to see what is done", until, now + 4 * MS);
    governor_finish(&governor, governor_paid(&governor), now);
    CHECK_EQUAL("and then", governor_buy(&governor, &half, 20 * MS, now, &until), GOVERNOR_WAIT);
    CHECK_EQUAL("until the debt is paid", until, now + 2 * (20 * MS - BURST) + 4);
    CHECK_EQUAL("not earlier", governor_buy(&governor, &half, 20 * MS, until - 30, &until),
                GOVERNOR_WAIT);
    CHECK_EQUAL("but then", buy(&governor, 20 * MS, until + 1), GOVERNOR_GO);
}

static void test_idle_time_leaves_a_burst_and_work_leaves_what_it_is_behind(void)
{
    struct governor governor = new_governor();
    uint64_t now = 1000 * MS;

    buy(&governor, 1, now);
    spend_all(&governor, now);
    buy(&governor, 1, now += 10000 * MS);
    CHECK_EQUAL("a burst, of which a chunk was taken", shared.budget_ns, BURST - 2 * MS);
    spend_all(&governor, now);
    shared.active_ns = now + 10000 * MS;
    buy(&governor, 1, now += 5000 * MS);
    CHECK_EQUAL("what it is behind", shared.budget_ns, BEHIND - 2 * MS);
    spend_all(&governor, now);
    shared.active_ns = now + 1 * MS;
    buy(&governor, 1, now += 2 * MS);
    CHECK_EQUAL("which idle time takes away", shared.budget_ns, BURST - 2 * MS);
}

static void test_what_is_in_flight_is_bounded(void)
{
    struct governor governor = new_governor();
    uint64_t now = 1000 * MS;
    uint64_t paid;

    for (int i = 0; i < 8; i++) {
        shared.budget_ns = 100 * MS;
        CHECK_EQUAL("room", buy(&governor, 1 * MS, now), GOVERNOR_GO);
        governor_pay(&governor, 1 * MS);
        if (governor_paid(&governor) == IN_LIMIT)
            break;
    }
    paid = governor_paid(&governor);
    CHECK_EQUAL("filled", paid, IN_LIMIT);
    CHECK_EQUAL("full", buy(&governor, 1 * MS, now), GOVERNOR_FULL);
    governor_finish(&governor, paid - 6 * MS, now);
    CHECK_EQUAL("room again", buy(&governor, 1 * MS, now), GOVERNOR_GO);
    CHECK_EQUAL("two launches of any length", buy(&governor, 20 * MS, now), GOVERNOR_GO);
    CHECK_EQUAL("not three", buy(&governor, 20 * MS, now), GOVERNOR_FULL);
}

static void test_an_empty_device_takes_a_launch_of_any_length(void)
{
    struct governor governor = new_governor();

    for (int i = 0; i < 2; i++) {
        shared.budget_ns = 1;
        CHECK_EQUAL("a graph of a second", buy(&governor, 1000 * MS, 1000 * MS), GOVERNOR_GO);
    }
    shared.budget_ns = 1;
    CHECK_EQUAL("not three", buy(&governor, 1000 * MS, 1000 * MS), GOVERNOR_FULL);
}

static void test_finished_work_is_none_for_others(void)
{
    struct governor governor = new_governor();

    buy(&governor, 500000, 1000 * MS);
    CHECK("there is work", work.begun != work.finished);
    governor_finish(&governor, governor_paid(&governor), 1000 * MS);
    CHECK_EQUAL("as good as none, as long as credit is left", work.begun, work.finished + 1);
    governor_empty(&governor, 1000 * MS);
    CHECK_EQUAL("none", work.begun, work.finished);
    governor_finish(&governor, 1, 1000 * MS);
    CHECK_EQUAL("what was finished stays so", governor.finished_ns, 500000);
    CHECK_EQUAL("and credit came back", shared.budget_ns, BURST - 500000);
}

static void test_corrections_are_paid_and_given_back(void)
{
    struct governor governor = new_governor();

    buy(&governor, 2 * MS, 1000 * MS);
    governor_correct(&governor, 10 * MS);
    CHECK_EQUAL("paid", shared.budget_ns, BURST - 12 * MS);
    CHECK_EQUAL("and counted", shared.busy_ns, 12 * MS);
    governor_correct(&governor, -4 * MS);
    CHECK_EQUAL("given back", shared.budget_ns, BURST - 8 * MS);
    CHECK_EQUAL("and not counted", shared.busy_ns, 8 * MS);
    governor_correct(&governor, 500 * MS);
    CHECK_EQUAL("in full, if it is long", shared.budget_ns, BURST - 508 * MS);
    governor_correct(&governor, 100000 * MS);
    CHECK_EQUAL("a minute at most", shared.budget_ns, -60000 * MS);
    governor_correct(&governor, 1 * MS);
    CHECK_EQUAL("which stays", shared.budget_ns, -60000 * MS);
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

static void test_in_a_hush_nothing_is_begun_and_nothing_is_lost(void)
{
    struct governor governor = new_governor();
    struct governor_share share = {.own = HALF, .limit = HALF, .hush_ns = 1050 * MS};
    uint64_t now = 1000 * MS;
    uint64_t until;

    buy(&governor, 1 * MS, now);
    CHECK("there is credit", credit_left(&governor.credit) > 0);
    CHECK_EQUAL("it waits", governor_buy(&governor, &share, 1, now += 1 * MS, &until),
                GOVERNOR_WAIT);
    CHECK_EQUAL("and looks again, as there is something in flight", until, now + MS / 2);
    CHECK_EQUAL("the credit is gone", credit_left(&governor.credit), 0);
    governor_finish(&governor, governor_paid(&governor), now);
    CHECK_EQUAL("it waits", governor_buy(&governor, &share, 1, now += 1 * MS, &until),
                GOVERNOR_WAIT);
    CHECK_EQUAL("to the end", until, 1050 * MS);
    shared.budget_ns = 0;
    share.hush_ns = 1200 * MS;
    for (int i = 0; i < 4; i++)
        governor_buy(&governor, &share, 1, now += 25 * MS, &until);
    CHECK_EQUAL("what it may begin afterwards", shared.budget_ns, 50 * MS);
    share.hush_ns = 0;
    CHECK_EQUAL("it begins", governor_buy(&governor, &share, 1, now, &until), GOVERNOR_GO);
}

static void test_in_a_quiet_moment_it_goes_into_debt_but_not_for_ever(void)
{
    struct governor governor = new_governor();
    struct governor_share share = {.own = HALF, .limit = HALF, .quiet = 1};
    uint64_t until;
    int launches = 0;

    shared.budget_ns = 0;
    shared.refilled_ns = 1000 * MS;
    while (governor_buy(&governor, &share, 8 * MS, 1000 * MS, &until) == GOVERNOR_GO) {
        launches++;
        governor_finish(&governor, governor_paid(&governor), 1000 * MS);
    }
    CHECK_EQUAL("so many of 8 ms", launches, 13);
    CHECK("with the debt of them", shared.budget_ns == -13 * 8 * MS);
}

static void test_a_wish_is_seen_and_taken_back_by_whose_it_is(void)
{
    struct governor governor = new_governor();
    struct governor other = new_governor();

    governor_wish(&governor, 1000 * MS, 8 * MS, 3);
    CHECK_EQUAL("until then", shared.quiet_ns, 1000 * MS);
    CHECK_EQUAL("by whom", shared.quiet_slot, 3);
    CHECK("for as long as it takes", shared.quiet_for >= 3 * 8 * MS);
    governor_wish_no_more(&other, 0, 3);
    CHECK_EQUAL("who did not wish takes nothing back", shared.quiet_ns, 1000 * MS);
    governor_wish(&other, 2000 * MS, 8 * MS, 4);
    governor_wish_no_more(&governor, 0, 3);
    CHECK_EQUAL("nor who is not asked for any more", shared.quiet_ns, 2000 * MS);
    governor_wish_no_more(&other, 5, 4);
    CHECK_EQUAL("who did, does", shared.quiet_ns, 5);
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
    governor_correct(&governor, 18 * MS);
    CHECK_EQUAL("once", take(&governor, follows(2 * MS, 20 * MS, 1)), 0);
    governor = new_governor();
    CHECK_EQUAL("beside others it may be theirs", take(&governor, follows(20 * MS, 40 * MS, 0)), 0);
    CHECK_EQUAL("but not all of it", take(&governor, follows(2 * MS, 60 * MS, 0)), 1);
    CHECK_EQUAL("is paid", shared.budget_ns, -16 * MS);
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
    governor_correct(&governor, 30 * MS);
    period = follows(4 * MS, 9 * MS, 1);
    period.several = 1;
    take(&governor, period);
    CHECK_EQUAL("too little is paid, whatever a launch seemed to take", shared.budget_ns,
                1 * MS - 5 * MS);
    period = follows(4 * MS, 9 * MS, 1);
    period.several = 1;
    period.giving_ns = 6 * MS;
    take(&governor, period);
    CHECK_EQUAL("between the two it can be as paid", shared.budget_ns, 1 * MS - 5 * MS);
    period = follows(4 * MS, 90 * MS, 0);
    period.several = 1;
    shared.budget_ns = 0;
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

static void test_elastic_is_filled_up_to_its_limit(void)
{
    struct governor governor = new_governor();
    struct governor_share share = {.own = HALF, .limit = HALF / 2 * 3, .lent = CLOCK_WHOLE};
    uint64_t until;

    shared.refilled_ns = 1000 * MS;
    shared.active_ns = 2000 * MS;
    shared.budget_ns = -30 * MS;
    governor_buy(&governor, &share, 1, 1020 * MS, &until);
    CHECK_EQUAL("three quarters", shared.budget_ns, -15 * MS);
    share.lent = CLOCK_WHOLE / 4;
    governor_buy(&governor, &share, 1, 1024 * MS, &until);
    CHECK_EQUAL("what is lent", shared.budget_ns, -15 * MS + 5 * MS / 2);
    share.lent = 0;
    governor_buy(&governor, &share, 1, 1026 * MS, &until);
    CHECK_EQUAL("its own", shared.budget_ns, -15 * MS + 7 * MS / 2);
}

static void test_times_of_another_boot_begin_anew(void)
{
    struct governor governor = new_governor();
    uint64_t until;

    shared.refilled_ns = shared.active_ns = UINT64_MAX / 2;
    CHECK_EQUAL("refilled in the future", governor_buy(&governor, &half, 1, 1000 * MS, &until),
                GOVERNOR_GO);
    CHECK_EQUAL("from now on", shared.refilled_ns, 1000 * MS);
    CHECK("a burst and no more", shared.budget_ns <= BURST);
    shared.refilled_ns = 1001 * MS;
    shared.budget_ns = -1;
    buy(&governor, 1, 1000 * MS);
    CHECK_EQUAL("another thread was faster", shared.refilled_ns, 1001 * MS);
    CHECK_EQUAL("which gives nothing twice", shared.budget_ns, -1);
}

int main(void)
{
    test_credit_pays_for_launches_until_it_is_spent();
    test_a_debt_is_waited_for_at_the_rate_of_the_share();
    test_idle_time_leaves_a_burst_and_work_leaves_what_it_is_behind();
    test_what_is_in_flight_is_bounded();
    test_an_empty_device_takes_a_launch_of_any_length();
    test_finished_work_is_none_for_others();
    test_corrections_are_paid_and_given_back();
    test_streams_that_overlap_pay_less();
    test_how_streams_overlap_exactly_counts_more_than_an_estimate();
    test_in_a_hush_nothing_is_begun_and_nothing_is_lost();
    test_in_a_quiet_moment_it_goes_into_debt_but_not_for_ever();
    test_a_wish_is_seen_and_taken_back_by_whose_it_is();
    test_what_takes_longer_than_was_paid_is_paid();
    test_what_may_have_been_a_pause_is_not_paid();
    test_after_that_there_is_no_more_than_a_launch_until_one_is_as_paid();
    test_several_streams_are_paid_by_what_all_of_them_took();
    test_streams_that_take_longer_together_pay_more();
    test_what_should_be_done_and_is_not_is_charged_until_it_is();
    test_elastic_is_filled_up_to_its_limit();
    test_times_of_another_boot_begin_anew();
    return check_end();
}
