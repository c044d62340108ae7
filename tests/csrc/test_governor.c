/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c -- the governor: admission of work, its charges, and its overlap. */
#include "check.h"
#include "core/compiler.h"
#include "core/number.h"
#include "governor_rows.h"

#define PAUSE_NS (3 * MS)

/* --- admission -------------------------------------------------------------------------------- */

static void test_work_is_placed_after_its_streams_pending_work(void)
{
    CHECK_EQUAL("an idle stream", governor_place(&governor, 0, 3 * MS), 3 * MS);
    CHECK_EQUAL("behind what is in flight", governor_place(&governor, 5 * MS, 3 * MS), 8 * MS);
    governor.busy_ns = 10 * MS;
    CHECK_EQUAL("never in the past", governor_place(&governor, 5 * MS, 3 * MS), 13 * MS);
}

static void test_work_within_paid_time_is_free(void)
{
    shared.budget_ns = 0;
    governor.paid_ns = 10 * MS;
    CHECK("without a budget", buy(4 * MS, 4 * MS));
    CHECK("to the end of it", buy(10 * MS, 6 * MS));
    CHECK_EQUAL("costs nothing", shared.busy_ns, 0);
    CHECK("what is beyond waits", !buy(11 * MS, MS));
    CHECK_EQUAL("and costs nothing", shared.busy_ns, 0);
    shared.budget_ns = 500 * MS;
    CHECK("until there is a budget", buy(11 * MS, MS));
    CHECK_EQUAL("only what is beyond is paid", shared.budget_ns, 499 * MS);
    CHECK_EQUAL("and counted", shared.busy_ns, MS);
    CHECK_EQUAL("up to there it is paid", governor.paid_ns, 11 * MS);
}

/* While the overlap of streams is unknown, they may run one after the other: they are paid as such,
 * and some may begin so that the overlap is learned. */
static void test_streams_are_paid_separately_at_first(void)
{
    buy(5 * MS, 5 * MS);
    CHECK("a stream that ends later waits", !buy(6 * MS, 3 * MS));
    CHECK("and much more in one that ends earlier", !buy(5 * MS, 6 * MS));
    shared.budget_ns = 100 * MS;
    CHECK("not what may overlap", buy(3 * MS, 3 * MS));
    CHECK_EQUAL("it is paid as well", governor.paid_ns, 8 * MS);
    CHECK_EQUAL("from the budget", shared.budget_ns, 97 * MS);
    CHECK_EQUAL("both are in flight", governor.ahead_ns, 8 * MS);
}

/* Streams take half of their sum. One has 10 ms left, and covers as much beside it. */
static void test_longest_streams_remaining_time_covers_others(void)
{
    struct governor_flight flight = {.ahead_ns = 14 * MS,
                                     .longest_ns = 10 * MS,
                                     .end_ns = 50 * MS,
                                     .since_ns = start,
                                     .running = 1};

    governor.busy_ns = 40 * MS;
    governor.overlap = HALF;
    governor_settle(&governor, &view, &flight, start + 40 * MS);
    shared.budget_ns = -10 * MS;
    governor.paused = 1;
    CHECK("what ends before it", buy(50 * MS, 4 * MS));
    CHECK_EQUAL("is free", shared.budget_ns, -10 * MS);
    CHECK("also beyond what is paid", buy(50 * MS, 12 * MS));
    CHECK_EQUAL("by what is beyond", shared.budget_ns, -15 * MS);
    CHECK("not more than it has left", !buy(50 * MS, MS));
}

static void test_unthrottled_work_is_paid_as_well(void)
{
    governor_pay(&governor, 30 * MS, 30 * MS);
    CHECK_EQUAL("into debt", shared.budget_ns, BUDGET_START_NS - 30 * MS);
    governor.overlap = HALF;
    governor_pay(&governor, 20 * MS, 20 * MS);
    CHECK_EQUAL("once", shared.budget_ns, BUDGET_START_NS - 30 * MS);
    CHECK_EQUAL("up to there", governor.paid_ns, 30 * MS);
}

static void test_any_positive_budget_admits_a_launch_of_any_length(void)
{
    shared.budget_ns = 1;
    CHECK("one nanosecond", buy(20000 * MS, 20000 * MS));
    CHECK_EQUAL("is owed", shared.budget_ns, 1 - 20000 * MS);
    CHECK("then nothing begins", !buy(20001 * MS, MS));
    shared.budget_ns = 0;
    governor.paused = 0;
    CHECK("nor with none", !buy(20001 * MS, MS));
}

/* The length of the pause beyond the time in which the debt is paid. */
static int64_t pause_at(uint32_t rate, uint32_t pauses)
{
    struct governor_share share = {.own = rate, .limit = rate};
    uint64_t until = 0, later = 0;
    int64_t debt;

    begin();
    governor.pauses = pauses;
    CHECK("a budget admits a launch",
          governor_buy(&governor, &share, 20 * MS, 20 * MS, start, &until));
    debt = -budget_left(&shared);
    CHECK("then it pauses", !governor_buy(&governor, &share, 21 * MS, MS, start, &until));
    CHECK("the debt alone is paid sooner",
          start + governor_debt_time(&governor, &share, 1) < until);
    CHECK("not while that is", !governor_buy(&governor, &share, 21 * MS, MS, until - MS, &later));
    CHECK("nor just before",
          !governor_buy(&governor, &share, 21 * MS, MS, until - MS / 10, &later));
    CHECK("and the end stays the same", is_near((int64_t) later, (int64_t) until, MS / 20));
    CHECK("but then", governor_buy(&governor, &share, 21 * MS, MS, later, &later));
    return (int64_t) (until - start) - debt * CLOCK_WHOLE / rate;
}

static void test_pause_lasts_until_some_milliseconds_accrued(void)
{
    static const uint32_t rates[] = {CLOCK_WHOLE / 100, CLOCK_WHOLE / 10, HALF, CLOCK_WHOLE};
    int64_t shortest = PAUSE_NS, longest = 0;

    for (size_t i = 0; i < ARRAY_SIZE(rates); i++)
        for (governor.pauses = 0; governor.pauses < 20;) {
            uint32_t pauses = governor.pauses;
            int64_t pause = pause_at(rates[i], pauses);

            CHECK("for any share the same", pause > PAUSE_NS * 2 / 3 - MS / 10);
            CHECK("give or take a third", pause < PAUSE_NS + MS / 10);
            shortest = smaller(shortest, pause);
            longest = larger(longest, pause);
            governor.pauses = pauses + 1;
        }
    CHECK("and not each time the same", longest - shortest > PAUSE_NS / 6);
}

static void test_refund_ends_a_pause_at_once(void)
{
    buy(40 * MS, 40 * MS);
    CHECK("it pauses", !buy(41 * MS, MS));
    shared.budget_ns = PAUSE_NS / 3 - 1;
    CHECK("as long as there is less", !buy(41 * MS, MS));
    shared.budget_ns = PAUSE_NS / 2;
    CHECK("not any longer", buy(41 * MS, MS));
    shared.budget_ns = 1;
    CHECK("then any budget will do", buy(42 * MS, MS));
}

static void test_debt_is_paid_at_the_shares_rate(void)
{
    buy(22 * MS, 22 * MS);
    CHECK_EQUAL("of one half", ((int64_t) governor_debt_time(&governor, &half, 1) + MS / 2) / MS,
                40);
    shared.budget_ns = 0;
    CHECK("none", governor_debt_time(&governor, &half, 1) < (uint64_t) MS / 10);
    shared.budget_ns = 5 * MS;
    CHECK("less than none", governor_debt_time(&governor, &half, 1) < (uint64_t) MS / 10);
}

static void test_elastic_is_filled_up_to_its_limit(void)
{
    struct governor_share share = {.own = HALF, .limit = HALF / 2 * 3, .lent = CLOCK_WHOLE};
    uint64_t until;

    shared.budget_ns = -30 * MS;
    governor_buy(&governor, &share, 1, 1, start + 20 * MS, &until);
    CHECK_EQUAL("three quarters", shared.budget_ns, -15 * MS);
    share.lent = CLOCK_WHOLE / 4;
    governor_buy(&governor, &share, 1, 1, start + 24 * MS, &until);
    CHECK_EQUAL("what is lent", shared.budget_ns, -15 * MS + 5 * MS / 2);
    share.lent = 0;
    governor_buy(&governor, &share, 1, 1, start + 26 * MS, &until);
    CHECK_EQUAL("its own", shared.budget_ns, -15 * MS + 7 * MS / 2);
    share = (struct governor_share) {.own = HALF, .limit = HALF, .lent = UINT32_MAX};
    governor_buy(&governor, &share, 1, 1, start + 28 * MS, &until);
    CHECK_EQUAL("a hard one is lent nothing", shared.budget_ns, -15 * MS + 9 * MS / 2);
}

static int64_t kept(int beside)
{
    struct governor_share share = {.own = HALF, .limit = HALF, .beside = beside};
    uint64_t until;

    begin();
    governor_buy(&governor, &share, 0, 0, start + 100000 * MS, &until);
    return budget_left(&shared);
}

static void test_contended_budget_keeps_less_unused_time(void)
{
    CHECK_EQUAL("alone, of a second", kept(0), 500 * MS);
    CHECK_EQUAL("beside others, of 100 ms", kept(1), 50 * MS);
}

/* Whether 50 ms beyond a budget of *budget* are admitted to a container with savings. */
static int admits_with_savings(int64_t budget, int spared)
{
    struct governor_share share = {.own = HALF, .limit = HALF, .beside = 1, .spared = spared};
    uint64_t until;

    begin();
    governor_buy(&governor, &share, 0, 0, start + 600 * MS, &until);
    shared.budget_ns = budget;
    return governor_buy(&governor, &share, 50 * MS, 50 * MS, start + 600 * MS, &until);
}

static void test_savings_are_drawn_while_others_have_no_work(void)
{
    int64_t pause = PAUSE_NS / 2; /* the share of it */

    CHECK("not while they have", !admits_with_savings(-MS, 0));
    CHECK_EQUAL("all are kept", shared.saved_ns, 250 * MS + BUDGET_START_NS);
    CHECK("instead of a pause", admits_with_savings(-MS, 1));
    CHECK_EQUAL("as much as a pause gains", shared.budget_ns, pause - 50 * MS);
    CHECK_EQUAL("and the debt", shared.saved_ns, 250 * MS + BUDGET_START_NS - pause - MS);
    CHECK("a full budget", admits_with_savings(pause, 1));
    CHECK_EQUAL("needs none", shared.saved_ns, 250 * MS + BUDGET_START_NS);
    CHECK("a great debt", !admits_with_savings(-400 * MS, 1));
    CHECK_EQUAL("takes all", shared.saved_ns, 0);
}

static void test_unlimited_container_never_waits_and_publishes(void)
{
    governor.unlimited = 1;
    for (int64_t i = 1; i <= 10; i++)
        CHECK("whatever it owes", buy(i * 100 * MS, 100 * MS));
    CHECK_EQUAL("it pays", shared.busy_ns, 1000 * MS);
    CHECK_EQUAL("and publishes", work.begun, 1000 * MS / WORK_UNIT_NS);
    settle(start + 10 * MS);
    CHECK_EQUAL("what did not run is given back", shared.busy_ns, 0);
    CHECK_EQUAL("also there", work.begun, 0);
}

static void test_chunk_is_a_small_part_of_the_share(void)
{
    static const struct {
        const char *sentence;
        uint32_t own;
        int64_t budget, chunk, unlimited;
    } rows[] = {
        {"one percent", CLOCK_WHOLE / 100, 50 * MS, MS / 5, MS / 5},
        {"a 16th", CLOCK_WHOLE / 16, 50 * MS, 10 * MS / 16, 10 * MS / 16},
        {"all", CLOCK_WHOLE, 50 * MS, MS, MS},
        {"no more than the budget", CLOCK_WHOLE, MS / 2, MS / 2, MS},
        {"but some", CLOCK_WHOLE, MS / 50, MS / 5, MS},
        {"into debt", CLOCK_WHOLE, -50 * MS, MS / 5, MS},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct governor_share share = {.own = rows[i].own, .limit = rows[i].own};

        shared.budget_ns = rows[i].budget;
        governor.unlimited = 0;
        CHECK_EQUAL(rows[i].sentence, governor_chunk(&governor, &share), rows[i].chunk);
        governor.unlimited = 1;
        CHECK_EQUAL(rows[i].sentence, governor_chunk(&governor, &share), rows[i].unlimited);
    }
}

static void test_waits_are_counted_for_metrics(void)
{
    governor_waits(&governor);
    governor_waited(&governor, 3 * MS);
    governor_waited(&governor, 4 * MS);
    CHECK_EQUAL("one", shared.waits, 1);
    CHECK_EQUAL("so long", shared.waited_ns, 7 * MS);
}

/* --- finished work ---------------------------------------------------------------------------- */

static void test_overestimate_is_refunded(void)
{
    buy(10 * MS, 10 * MS);
    finish_at(start, start + 4 * MS, 10 * MS);
    CHECK_EQUAL("it took less", governor.busy_ns, 4 * MS);
    settle(start + 4 * MS);
    CHECK_EQUAL("that much is paid", governor.paid_ns, 4 * MS);
    CHECK_EQUAL("by the budget", shared.budget_ns, BUDGET_START_NS - 4 * MS);
    CHECK_EQUAL("and counted", shared.busy_ns, 4 * MS);
    CHECK_EQUAL("nothing is in flight", governor.ahead_ns, 0);
}

static void test_underestimate_is_charged(void)
{
    buy(MS, MS);
    finish_at(start, start + 9 * MS, MS);
    CHECK_EQUAL("it took more", governor.busy_ns, 9 * MS);
    settle(start + 9 * MS);
    CHECK_EQUAL("that much is paid", governor.paid_ns, 9 * MS);
    CHECK_EQUAL("which it owes", shared.budget_ns, BUDGET_START_NS - 9 * MS);
}

/* Of launches that came one after the other to an idle stream only the last is known to have run
 * without a gap. */
static void test_gaps_between_launches_are_not_charged(void)
{
    struct governor_piece piece = {start, start + 8 * MS, start + 10 * MS, .expected_ns = 3 * MS};

    CHECK_EQUAL("what is expected", taken(piece), 3 * MS);
    piece.expected_ns = MS;
    CHECK_EQUAL("at least the last", taken(piece), 2 * MS);
    piece.expected_ns = 30 * MS;
    CHECK_EQUAL("at most all", taken(piece), 10 * MS);
    piece.given_ns = start - 5 * MS;
    piece.expected_ns = MS;
    CHECK_EQUAL("what was given before it could run", taken(piece), 10 * MS);
    piece.until_ns = start - MS;
    CHECK_EQUAL("times that are wrong take nothing", taken(piece), 0);
    CHECK("nor count", is_near((int64_t) governor.busy_ns, 10 * MS, 2 * PART));
}

/* A stream may have waited for others of the process all the time, but the process was at work. */
static void test_concurrent_streams_are_charged_their_union(void)
{
    struct governor_piece piece = {start, start, start + 10 * MS, MS, .crowded = 1};

    CHECK_EQUAL("what is expected", taken(piece), MS);
    CHECK("the time of all", is_near((int64_t) governor.busy_ns, 10 * MS, 2 * PART));
    piece.expected_ns = 12 * MS;
    CHECK_EQUAL("at most all of it", taken(piece), 10 * MS);
    CHECK("once", is_near((int64_t) governor.busy_ns, 10 * MS, 2 * PART));
}

static void test_work_in_flight_stays_paid(void)
{
    struct governor_flight flight = {
        .ahead_ns = 5 * MS, .end_ns = 9 * MS, .since_ns = start, .running = 1};

    buy(10 * MS, 10 * MS);
    finish_at(start, start + 4 * MS, 5 * MS);
    governor_settle(&governor, &view, &flight, start + 4 * MS);
    CHECK_EQUAL("to its end", governor.paid_ns, 9 * MS);
    CHECK_EQUAL("by the budget", shared.budget_ns, BUDGET_START_NS - 9 * MS);
    flight.end_ns = 15 * MS;
    governor_settle(&governor, &view, &flight, start + 12 * MS);
    CHECK_EQUAL("which is later than expected", governor.paid_ns, 15 * MS);
    CHECK_EQUAL("by the budget", shared.budget_ns, BUDGET_START_NS - 15 * MS);
    flight.end_ns = MS;
    governor_settle(&governor, &view, &flight, start + 12 * MS);
    CHECK_EQUAL("all that is ahead, one by one", governor.paid_ns, 9 * MS);
    flight.ahead_ns = 0;
    governor_settle(&governor, &view, &flight, start + 12 * MS);
    CHECK_EQUAL("but no less than what was done", governor.paid_ns, 4 * MS);
}

static void test_settle_reports_guessed_time(void)
{
    struct governor_flight flight = {.since_ns = start, .running = 1, .guessing = 1};

    governor_settle(&governor, &view, &flight, start);
    CHECK("it was", governor.guessing);
    settle(start);
    CHECK("nothing is in flight", !governor.guessing && !governor.running);
}

static void test_simultaneous_streams_are_paid_once(void)
{
    for (uint64_t at = start; at < start + 40 * MS; at += 4 * MS) {
        finish_at(at, at + 4 * MS, 4 * MS);
        finish_at(at, at + 4 * MS, 4 * MS);
        finish_at(at + 2 * MS, at + 4 * MS, 2 * MS);
    }
    settle(start + 40 * MS);
    CHECK("the time in which any ran", is_near((int64_t) governor.busy_ns, 40 * MS, MS / 100));
    CHECK_EQUAL("is paid", shared.busy_ns, governor.busy_ns);
}

static void test_trusted_work_counts_as_done(void)
{
    buy(30 * MS, 30 * MS);
    buy(33 * MS, 3 * MS);
    governor.paused = 0;
    shared.budget_ns = 10 * MS;
    CHECK("it is paid", buy(governor_place(&governor, 0, 3 * MS), 3 * MS));
    governor_trust(&governor, 3 * MS);
    CHECK_EQUAL("so much was done", governor.busy_ns, 3 * MS);
    CHECK_EQUAL("the other one is in flight", governor.ahead_ns, 30 * MS);
    CHECK_EQUAL("both are paid", shared.busy_ns, 33 * MS);
    settle(start);
    CHECK_EQUAL("and that alone, if the other one never ran", shared.busy_ns, 3 * MS);
}

static void test_trusted_work_is_always_paid(void)
{
    governor.overlap = HALF;
    governor.paid_ns = 2 * MS;
    governor.ahead_ns = 3 * MS;
    governor_trust(&governor, 3 * MS);
    CHECK_EQUAL("what is done is paid", governor.paid_ns, 3 * MS);
    CHECK_EQUAL("as far as it was not", shared.busy_ns, MS);
}

/* --- overlap of streams ----------------------------------------------------------------------- */

/* Run so many pieces of a bin's length in each of two streams, the second delayed by *behind_ns*.
 */
static void run_two_streams(int pieces, int64_t behind_ns, int64_t expected_ns)
{
    for (int i = 0; i < pieces; i++) {
        uint64_t at = row_start + (uint64_t) (i * 2 * BIN);

        finish_at(at, at + BUSY_BIN_NS, expected_ns);
        finish_at(at + (uint64_t) behind_ns, at + (uint64_t) behind_ns + BUSY_BIN_NS, expected_ns);
    }
}

static void test_overlap_is_the_ratio_of_union_to_sum(void)
{
    static const struct {
        const char *sentence;
        int64_t behind, expected;
        uint32_t overlap;
    } rows[] = {
        {"at the same time", 0, BIN, HALF},
        {"half of it", BIN / 2, BIN, CLOCK_WHOLE / 4 * 3},
        {"one after the other", BIN, BIN, CLOCK_WHOLE},
        {"expected too short", BIN, BIN / 4, 4 * CLOCK_WHOLE},
        {"that and at the same time", 0, BIN / 4, 2 * CLOCK_WHOLE},
        {"expected too long", BIN, 8 * BIN, CLOCK_WHOLE / 8},
        {"much too short", BIN, BIN / 64, 16 * CLOCK_WHOLE},
        {"much too long", BIN, 64 * BIN, CLOCK_WHOLE / 16},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        begin();
        run_two_streams(200, rows[i].behind, rows[i].expected);
        CHECK(rows[i].sentence, is_near(governor.overlap, rows[i].overlap, rows[i].overlap / 50));
    }
}

static void test_overlap_is_learned_gradually(void)
{
    run_two_streams(70, 0, BIN);
    CHECK_EQUAL("not of 37 ms one by one", governor.overlap, 0);
    run_two_streams(10, 0, BIN);
    CHECK("of 40 ms", governor.overlap > 0);
}

static void test_guessed_time_teaches_no_overlap(void)
{
    for (int i = 0; i < 100; i++) {
        uint64_t at = row_start + (uint64_t) (i * 10 * MS);

        taken((struct governor_piece) {at, at, at + 5 * MS, MS / 100, .guessed = 1});
    }
    CHECK_EQUAL("none", governor.overlap, 0);
    CHECK("though it is charged", is_near((int64_t) governor.busy_ns, 500 * MS, MS));
}

static void test_overlapping_streams_are_paid_together(void)
{
    governor.overlap = HALF;
    shared.budget_ns = 100 * MS;
    buy(10 * MS, 10 * MS);
    CHECK_EQUAL("the first as a whole", shared.busy_ns, 10 * MS);
    buy(10 * MS, 10 * MS);
    CHECK_EQUAL("the second is free", shared.busy_ns, 10 * MS);
    buy(10 * MS, 10 * MS);
    CHECK_EQUAL("of the third a half", shared.busy_ns, 15 * MS);
    settle(start);
    governor_settle(&governor, &view,
                    &(struct governor_flight) {
                        .ahead_ns = 30 * MS, .end_ns = 10 * MS, .since_ns = start, .running = 1},
                    start);
    CHECK_EQUAL("the same if it is settled", shared.busy_ns, 15 * MS);
}

static void test_overdue_work_is_paid_more(void)
{
    governor.overlap = 2 * CLOCK_WHOLE;
    shared.budget_ns = 100 * MS;
    buy(10 * MS, 10 * MS);
    CHECK_EQUAL("twice as much", shared.busy_ns, 20 * MS);
    governor_settle(&governor, &view,
                    &(struct governor_flight) {
                        .ahead_ns = 4 * MS, .end_ns = 4 * MS, .since_ns = start, .running = 1},
                    start);
    CHECK_EQUAL("also if it is settled", shared.busy_ns, 8 * MS);
}

static void test_reset_expectations_reset_overlap(void)
{
    run_two_streams(100, 0, BIN);
    CHECK("something is known", governor.overlap > 0 && governor.apart_ns > 0);
    governor_reset_overlap(&governor);
    CHECK_EQUAL("nothing is", governor.overlap, 0);
    CHECK_EQUAL("nor of what was followed", governor.apart_ns + governor.together_ns, 0);
}

/* --- publication ------------------------------------------------------------------------------ */

static void test_begun_and_finished_work_is_published(void)
{
    struct governor_flight flight = {
        .ahead_ns = 5 * MS, .end_ns = 11 * MS, .since_ns = start, .running = 1};

    buy(10 * MS, 10 * MS);
    CHECK_EQUAL("begun", work.begun, 10 * MS / WORK_UNIT_NS);
    CHECK_EQUAL("not finished", work.finished, 0);
    finish_at(start, start + 6 * MS, 5 * MS);
    governor_settle(&governor, &view, &flight, start + 6 * MS);
    CHECK_EQUAL("more begun", work.begun, 11 * MS / WORK_UNIT_NS);
    CHECK_EQUAL("some finished", work.finished, 6 * MS / WORK_UNIT_NS);
    flight.ahead_ns = flight.end_ns = 0;
    governor_settle(&governor, &view, &flight, start + 6 * MS);
    CHECK_EQUAL("what is expected is finished", work.begun, work.finished);
    flight.guessing = 1;
    governor_settle(&governor, &view, &flight, start + 6 * MS);
    CHECK_EQUAL("what runs and was never measured is work, also if nothing more is expected",
                work.begun, 8 * MS / WORK_UNIT_NS);
    CHECK_EQUAL("but not paid", shared.busy_ns, 6 * MS);
    settle(start + 12 * MS);
    CHECK_EQUAL("nothing runs, nothing is begun", work.begun, work.finished);
}

static void test_work_words_wrap(void)
{
    int64_t end = (INT64_C(1) << 32) * WORK_UNIT_NS;

    governor.busy_ns = governor.paid_ns = (uint64_t) (end - 3 * WORK_UNIT_NS);
    buy(end + 7 * WORK_UNIT_NS, 10 * WORK_UNIT_NS);
    CHECK_EQUAL("begun", work.begun, 7);
    CHECK_EQUAL("finished", work.finished, UINT32_MAX - 2);
    CHECK_EQUAL("is in flight", work.begun - work.finished, 10);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_work_is_placed_after_its_streams_pending_work,
        test_work_within_paid_time_is_free,
        test_streams_are_paid_separately_at_first,
        test_longest_streams_remaining_time_covers_others,
        test_unthrottled_work_is_paid_as_well,
        test_any_positive_budget_admits_a_launch_of_any_length,
        test_pause_lasts_until_some_milliseconds_accrued,
        test_refund_ends_a_pause_at_once,
        test_debt_is_paid_at_the_shares_rate,
        test_elastic_is_filled_up_to_its_limit,
        test_contended_budget_keeps_less_unused_time,
        test_savings_are_drawn_while_others_have_no_work,
        test_unlimited_container_never_waits_and_publishes,
        test_chunk_is_a_small_part_of_the_share,
        test_waits_are_counted_for_metrics,
        test_overestimate_is_refunded,
        test_underestimate_is_charged,
        test_gaps_between_launches_are_not_charged,
        test_concurrent_streams_are_charged_their_union,
        test_work_in_flight_stays_paid,
        test_settle_reports_guessed_time,
        test_simultaneous_streams_are_paid_once,
        test_trusted_work_counts_as_done,
        test_trusted_work_is_always_paid,
        test_overlap_is_the_ratio_of_union_to_sum,
        test_overlap_is_learned_gradually,
        test_guessed_time_teaches_no_overlap,
        test_overlapping_streams_are_paid_together,
        test_overdue_work_is_paid_more,
        test_reset_expectations_reset_overlap,
        test_begun_and_finished_work_is_published,
        test_work_words_wrap,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
