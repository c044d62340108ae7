/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c -- budget, credit and what may be in flight, step by step. */
#include "governor_room.h"

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

static void test_work_that_waits_for_the_turns_of_others_is_no_idle_time(void)
{
    struct governor governor = new_governor();
    uint64_t now = 1000 * MS;

    buy(&governor, 1, now);
    for (int i = 0; i < 100; i++, now += 50 * MS)
        governor_worked(&governor, now, now + 50 * MS);
    spend_all(&governor, now);
    buy(&governor, 1, now);
    CHECK_EQUAL("what it is behind", shared.budget_ns, BEHIND - 2 * MS);
    spend_all(&governor, now);
    governor_worked(&governor, now + 4900 * MS, now + 5000 * MS);
    buy(&governor, 1, now + 5000 * MS);
    CHECK_EQUAL("but a pause before it is", shared.budget_ns, BURST - 2 * MS);
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
    CHECK_EQUAL("and looks whether it is over", until, now + 2 * MS);
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
    test_work_that_waits_for_the_turns_of_others_is_no_idle_time();
    test_what_is_in_flight_is_bounded();
    test_an_empty_device_takes_a_launch_of_any_length();
    test_finished_work_is_none_for_others();
    test_in_a_hush_nothing_is_begun_and_nothing_is_lost();
    test_in_a_quiet_moment_it_goes_into_debt_but_not_for_ever();
    test_a_wish_is_seen_and_taken_back_by_whose_it_is();
    test_elastic_is_filled_up_to_its_limit();
    test_times_of_another_boot_begin_anew();
    return check_end();
}
