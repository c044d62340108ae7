/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor.c -- the governor: admission of work, its charges, and corrections by measurement.
 */
#include "check.h"
#include "core/compiler.h"
#include "core/governor.h"
#include "core/number.h"

#include <pthread.h>

#define MS   INT64_C(1000000)
#define HALF (CLOCK_WHOLE / 2)
#define BIN  ((int64_t) BUSY_BIN_NS)
#define PART ((int64_t) BUSY_PART_NS)

#define PAUSE_NS     (3 * MS)
#define ROW_ERROR_NS (5 * MS)
#define FRACTIONS_NS (MS / 50) /* of the clock's rate in each bin */

static const uint64_t start = 1000 * MS;
static const uint64_t row_start = 8000 * BUSY_BIN_NS; /* two seconds, where a bin begins */
static const struct governor_share half = {.own = HALF, .limit = HALF};
static const struct clock_view no_clock;

static struct usage_compute shared;
static struct usage_work work;
static struct governor governor;
static struct clock_view view;

static void begin(void)
{
    memset(&shared, 0, sizeof(shared));
    memset(&work, 0, sizeof(work));
    memset(&view, 0, sizeof(view));
    memset(&governor, 0, sizeof(governor));
    governor.shared = &shared;
    governor.work = &work;
    shared.refilled_ns = start;
    shared.budget_ns = BUDGET_START_NS;
}

static int buy_until(int64_t end_ns, int64_t ns, uint64_t now, uint64_t *until)
{
    return governor_buy(&governor, &half, (uint64_t) end_ns, ns, now, until);
}

static int buy(int64_t end_ns, int64_t ns)
{
    uint64_t until;

    return buy_until(end_ns, ns, start, &until);
}

static void finish_at(uint64_t from_ns, uint64_t until_ns, int64_t expected_ns)
{
    struct governor_piece piece = {from_ns, from_ns, until_ns, expected_ns, .joins = 1};

    governor_finish(&governor, &piece, &view, until_ns);
}

static int64_t taken(struct governor_piece piece)
{
    return governor_finish(&governor, &piece, &view, piece.until_ns);
}

/* Nothing is in flight. */
static void settle(uint64_t now)
{
    governor_settle(&governor, &view, &(struct governor_flight) {.since_ns = now}, now);
}

static int is_near(int64_t ns, int64_t other, int64_t margin)
{
    return ns >= other - margin && ns <= other + margin;
}

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

/* --- idle times ------------------------------------------------------------------------------- */

static uint64_t idle_words[2];

static uint64_t from_of(uint64_t word)
{
    return (word >> IDLE_LENGTH_BITS) * WORK_UNIT_NS;
}

static uint64_t length_of(uint64_t word)
{
    return (word & IDLE_LENGTH_MASK) * WORK_UNIT_NS;
}

static int is_open(uint64_t word)
{
    return (word & IDLE_LENGTH_MASK) == IDLE_LENGTH_MASK;
}

static void begin_idle(void)
{
    idle_words[0] = idle_words[1] = 0;
    governor.idle = idle_words;
}

static uint64_t last_word(void)
{
    return idle_words[governor.idle_at];
}

static void test_idle_times_are_published_when_over(void)
{
    begin_idle();
    governor_work(&governor, start);
    CHECK_EQUAL("it had work", last_word(), 0);
    governor_rest(&governor, start + MS, start + 2 * MS);
    CHECK_EQUAL("an idle time seen once is not published", idle_words[0] | idle_words[1], 0);
    CHECK("but known", governor_rests(&governor));
    governor_work(&governor, start + 3 * MS);
    CHECK("from when it ended on",
          from_of(last_word()) >= start + MS && from_of(last_word()) < start + MS + WORK_UNIT_NS);
    CHECK("until work came",
          from_of(last_word()) + length_of(last_word()) <= start + 3 * MS &&
              from_of(last_word()) + length_of(last_word()) > start + 3 * MS - WORK_UNIT_NS);
    CHECK("it has work", !governor_rests(&governor));
    governor_rest(&governor, start + 4 * MS, start + 4 * MS);
    governor_work(&governor, start + 5 * MS);
    CHECK("the one before is kept",
          idle_words[0] && idle_words[1] && idle_words[0] != idle_words[1]);
}

static void test_idle_time_seen_twice_is_published_while_it_lasts(void)
{
    begin_idle();
    for (uint64_t i = 2; i < 5; i++)
        governor_rest(&governor, start + MS, start + i * MS);
    CHECK("it goes on", is_open(last_word()));
    CHECK("from the first time on", from_of(last_word()) < start + MS + WORK_UNIT_NS);
    CHECK_EQUAL("one word", idle_words[governor.idle_at ^ 1], 0);
    governor_work(&governor, start + 9 * MS);
    CHECK("then it is over", !is_open(idle_words[0]) && !is_open(idle_words[1]));
    CHECK_EQUAL("in the same word", idle_words[governor.idle_at ^ 1], 0);
    CHECK("all of it", length_of(last_word()) > 7 * MS);
}

static void test_end_of_long_idle_time_is_published(void)
{
    uint64_t end = start + 100 * 1000 * (uint64_t) MS;

    begin_idle();
    governor_rest(&governor, start, start);
    governor_work(&governor, end);
    CHECK("no mark of one that goes on", !is_open(last_word()));
    CHECK("as much as a word holds", length_of(last_word()) > 17 * 1000 * (uint64_t) MS);
    CHECK("up to its end", from_of(last_word()) + length_of(last_word()) > end - WORK_UNIT_NS);
}

static void test_short_idle_times_are_published(void)
{
    begin_idle();
    governor_rest(&governor, start, start);
    governor_work(&governor, start + 10);
    CHECK_EQUAL("nothing is said", idle_words[0] | idle_words[1], 0);
    governor.idle = NULL;
    governor_rest(&governor, start, start);
    governor_work(&governor, start + MS);
    CHECK("nor by one that has no words", !governor_rests(&governor));
}

static int racing;

static void *keep_resting(void *nothing)
{
    while (__atomic_load_n(&racing, __ATOMIC_ACQUIRE))
        governor_rest(&governor, start, start + 2 * MS);
    return nothing;
}

/* One thread sees that there is no work while another begins some. */
static void test_new_work_ends_published_idle_time(void)
{
    int stale = 0;

    begin_idle();
    for (int i = 0; i < 300; i++) {
        pthread_t thread;

        racing = 1;
        pthread_create(&thread, NULL, keep_resting, NULL);
        for (int j = 0; j < 50; j++)
            governor_work(&governor, start + 3 * MS);
        __atomic_store_n(&racing, 0, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
        governor_work(&governor, start + 3 * MS);
        stale += is_open(idle_words[0]) || is_open(idle_words[1]);
    }
    CHECK_EQUAL("never", stale, 0);
}

static void test_idle_words_wrap(void)
{
    int64_t end = (INT64_C(1) << 32) * WORK_UNIT_NS;

    governor.busy_ns = governor.paid_ns = (uint64_t) (end - 3 * WORK_UNIT_NS);
    buy(end + 7 * WORK_UNIT_NS, 10 * WORK_UNIT_NS);
    CHECK_EQUAL("begun", work.begun, 7);
    CHECK_EQUAL("finished", work.finished, UINT32_MAX - 2);
    CHECK_EQUAL("is in flight", work.begun - work.finished, 10);
}

/* --- beside others ---------------------------------------------------------------------------- */

/* A clock up to *beat_ns*. Two containers share the device from *divided_ns* on. */
static struct clock_file page_of(uint64_t divided_ns, uint64_t beat_ns)
{
    struct clock_file page = {
        .header = {.magic = CLOCK_MAGIC, .layout = CLOCK_LAYOUT, .size = CLOCK_PAGE}};
    uint64_t first = beat_ns - 200 * 5 * (uint64_t) MS;

    page.newest = 200;
    for (uint32_t i = 0; i <= page.newest; i++) {
        uint64_t at = first + i * 5 * (uint64_t) MS;

        page.samples[i].at_ns = page.beat_ns = at;
        page.samples[i].share_ns = page.share_ns =
            at < divided_ns ? at : divided_ns + (at - divided_ns) / 2;
    }
    page.busy = 2;
    page.tenants = 2;
    return page;
}

static void read_clock(uint64_t divided_ns, uint64_t beat_ns)
{
    struct clock_file page = page_of(divided_ns, beat_ns);

    clock_judge(&view, &page, beat_ns);
    CHECK("it is believed", view.valid);
}

/* The time charged for a piece that was expected to take 8 ms, beside one other process. */
static int64_t taken_beside(struct governor_piece piece)
{
    piece.from_ns += row_start;
    piece.given_ns += row_start;
    piece.until_ns += row_start;
    piece.expected_ns = 8 * MS;
    governor.carried_ns = 0;
    return taken(piece);
}

static void test_contended_work_takes_its_expectation_unless_the_clock_contradicts(void)
{
    read_clock(start, row_start);
    CHECK_EQUAL("about right", taken_beside((struct governor_piece) {.until_ns = 16 * MS}), 8 * MS);
    CHECK_EQUAL("a little too long", taken_beside((struct governor_piece) {.until_ns = 9 * MS}),
                8 * MS);
    CHECK("much too long: half of the time, and 5 ms",
          is_near(taken_beside((struct governor_piece) {.until_ns = 4 * MS}), 4 * MS, 0) &&
              is_near(taken_beside((struct governor_piece) {.until_ns = 5 * MS}), 5 * MS, 0));
    CHECK_EQUAL("a little too short", taken_beside((struct governor_piece) {.until_ns = 25 * MS}),
                8 * MS);
    CHECK("much too short: half of the time, less 5 ms",
          is_near(taken_beside((struct governor_piece) {.until_ns = 40 * MS}), 15 * MS,
                  FRACTIONS_NS));
    CHECK_EQUAL("not where it was perhaps idle",
                taken_beside((struct governor_piece) {.given_ns = 40 * MS, .until_ns = 40 * MS}),
                8 * MS);
    CHECK_EQUAL("nor where it waited for other streams",
                taken_beside((struct governor_piece) {.until_ns = 40 * MS, .crowded = 1}), 8 * MS);
    governor.ratio = HALF;
    CHECK_EQUAL("expectations beside others have a ratio",
                taken_beside((struct governor_piece) {.until_ns = 16 * MS}), 4 * MS);
    CHECK_EQUAL("a guess has none",
                taken_beside((struct governor_piece) {.until_ns = 16 * MS, .guessed = 1}), 8 * MS);
    CHECK_EQUAL("nor what is crowded",
                taken_beside((struct governor_piece) {.until_ns = 16 * MS, .crowded = 1}), 8 * MS);
    view = no_clock;
    CHECK_EQUAL("nor what is alone",
                taken_beside((struct governor_piece) {.given_ns = 16 * MS, .until_ns = 16 * MS}),
                8 * MS);
}

/* --- work that must have run alone -------------------------------------------------------------
 */

/* A clock by which the process in slot 0 was alone from *from* to *until*. */
static void read_moment(uint64_t from, uint64_t until)
{
    struct clock_file page = page_of(start, row_start + 200 * (uint64_t) MS);

    page.moments[3] = (struct clock_alone) {row_start + from, row_start + until, 1, 0};
    clock_judge(&view, &page, page.beat_ns);
}

/* The final charge of a piece that was first charged 1 ms for the time from *from* to *until*. */
static int64_t granted(uint64_t since, uint64_t from, uint64_t until, int crowded)
{
    struct governor_piece piece = {row_start + from, row_start + from, row_start + until, MS,
                                   .crowded = crowded};
    uint64_t before;

    begin();
    piece.since_ns = row_start + since;
    read_clock(start, row_start);
    before = governor.busy_ns;
    governor_finish(&governor, &piece, &view, piece.until_ns);
    settle(piece.until_ns);
    CHECK("as expected at first", is_near((int64_t) (governor.busy_ns - before), MS, 100));
    read_moment(20 * MS, 30 * MS);
    settle(row_start + 200 * (uint64_t) MS);
    settle(row_start + 201 * (uint64_t) MS);
    return (int64_t) (governor.busy_ns - before);
}

static void test_work_known_to_run_alone_is_charged_once(void)
{
    CHECK("all of it", is_near(granted(21 * MS, 22 * MS, 25 * MS, 0), 3 * MS, 100));
    CHECK("up to the end of the moment",
          is_near(granted(21 * MS, 28 * MS, 35 * MS, 0), 2 * MS, 100));
    CHECK("not what was charged more for",
          is_near(granted(21 * MS, 29 * MS + MS / 2, 35 * MS, 0), MS, 100));
    CHECK("not where another had work before it",
          is_near(granted(19 * MS, 22 * MS, 25 * MS, 0), MS, 100));
    CHECK("nor where it began beside others",
          is_near(granted(15 * MS, 16 * MS, 25 * MS, 0), MS, 100));
    CHECK("nor what waited for other streams",
          is_near(granted(21 * MS, 22 * MS, 25 * MS, 1), MS, 100));
}

static void test_piece_is_alone_from_end_of_preceding_work(void)
{
    uint64_t now = row_start + 200 * (uint64_t) MS;

    read_moment(20 * MS, 30 * MS);
    CHECK("in the moment", governor_alone(&view, row_start + 21 * MS, row_start + 22 * MS,
                                          row_start + 25 * MS, now));
    CHECK(
        "another had work before it",
        !governor_alone(&view, row_start + 19 * MS, row_start + 22 * MS, row_start + 25 * MS, now));
    CHECK("and after it", !governor_alone(&view, row_start + 21 * MS, row_start + 22 * MS,
                                          row_start + 31 * MS, now));
    CHECK("nothing was before it",
          governor_alone(&view, 0, row_start + 22 * MS, row_start + 25 * MS, now));
}

#define LENGTH (40 * BIN) /* some 10 ms */

static uint64_t row_end;

static void begin_rows(void)
{
    begin();
    row_end = row_start;
    read_clock(start, row_end);
}

/* Run so many bins of work in so many streams to the end, and update the clock. */
static void run(int64_t bins, int streams, struct governor_piece piece)
{
    piece.from_ns = piece.given_ns = row_end;
    piece.until_ns = row_end += (uint64_t) (bins * BIN);
    for (int i = 0; i < streams; i++)
        governor_finish(&governor, &piece, &view, row_end);
    settle(row_end);
    read_clock(start, row_end);
    settle(row_end);
}

static void run_row(int pieces, int streams, int64_t expected_ns)
{
    for (int i = 0; i < pieces; i++)
        run(LENGTH / BIN, streams,
            (struct governor_piece) {.expected_ns = expected_ns, .joins = 1});
}

static void pass_gap(int64_t ns)
{
    row_end += (uint64_t) ns;
    read_clock(start, row_end);
    settle(row_end);
}

static void check_row(const char *sentence, int64_t expected_ns, int64_t margin_ns)
{
    CHECK(sentence, is_near((int64_t) governor.busy_ns, expected_ns, margin_ns));
    CHECK_EQUAL("what is charged is paid", shared.busy_ns, governor.busy_ns);
    CHECK_EQUAL("all of it", governor.paid_ns, governor.busy_ns);
}

/* The clock's error bound for a row of *length*. */
static int64_t row_error(int64_t length)
{
    return ROW_ERROR_NS + length / 8 + FRACTIONS_NS;
}

static void test_clock_gives_the_part_of_a_gapless_row(void)
{
    for (int pieces = 2; pieces <= 40; pieces += 19) {
        int64_t right = pieces * LENGTH / 2;

        begin_rows();
        run_row(pieces, 1, LENGTH / 2);
        check_row("expected right", right, FRACTIONS_NS);
        begin_rows();
        run_row(pieces, 1, 9 * MS);
        check_row("too long", right, row_error(pieces * LENGTH));
        begin_rows();
        run_row(pieces, 1, MS);
        check_row("too short", right, row_error(pieces * LENGTH));
    }
}

static void test_within_5_ms_the_clock_does_not_contradict(void)
{
    begin_rows();
    run_row(1, 1, LENGTH / 2 + 9 * MS / 2);
    check_row("too long", LENGTH / 2 + 9 * MS / 2, 0);
    begin_rows();
    run_row(1, 1, LENGTH / 2 - 9 * MS / 2);
    check_row("too short", LENGTH / 2 - 9 * MS / 2, 0);
    begin_rows();
    for (int i = 0; i < 4; i++) {
        run_row(1, 1, LENGTH / 2 + 4 * MS);
        run_row(1, 1, LENGTH / 2 - 4 * MS);
    }
    check_row("now more, now less", 4 * LENGTH, FRACTIONS_NS);
}

static void test_after_a_gap_nothing_carries_over(void)
{
    static const int64_t gaps[] = {3 * BIN, BIN, 2 * PART};

    for (size_t i = 0; i < ARRAY_SIZE(gaps); i++) {
        begin_rows();
        for (int row = 0; row < 15; row++) {
            run_row(1, 1, LENGTH / 2 + 4 * MS);
            pass_gap(gaps[i]);
        }
        check_row("too long", 15 * (LENGTH / 2 + 4 * MS), FRACTIONS_NS);
        begin_rows();
        for (int row = 0; row < 15; row++) {
            run_row(1, 1, LENGTH / 2 - 4 * MS);
            pass_gap(gaps[i]);
        }
        check_row("too short", 15 * (LENGTH / 2 - 4 * MS), FRACTIONS_NS);
    }
    begin_rows();
    run_row(15, 1, LENGTH / 2 + 4 * MS);
    check_row("without a gap it does", 15 * LENGTH / 2, row_error(15 * LENGTH));
}

static void test_rows_of_several_streams_follow_the_clock(void)
{
    for (int streams = 2; streams <= 4; streams++) {
        begin_rows();
        run_row(1, streams, 9 * MS);
        check_row("too long", LENGTH / 2, FRACTIONS_NS);
        begin_rows();
        run_row(1, streams, MS);
        check_row("too short", LENGTH / 2, FRACTIONS_NS);
        begin_rows();
        run_row(20, streams, LENGTH / 2);
        check_row("in the end", 10 * LENGTH, FRACTIONS_NS);
        begin_rows();
        run_row(1, streams, LENGTH / 2);
        run_row(1, 1, 9 * MS);
        check_row("to the end of the row", LENGTH, FRACTIONS_NS);
    }
}

/* In each bin two streams ran during the same half of it, for a quarter each by the first estimate,
 * and the other process had a half. */
static void test_union_follows_the_clock_after_a_gap(void)
{
    begin_rows();
    for (int i = 0; i < 40; i++, row_end += BUSY_BIN_NS)
        for (int stream = 0; stream < 2; stream++)
            finish_at(row_end, row_end + BUSY_BIN_NS / 2, BIN / 4);
    settle(row_end);
    check_row("one after the other", 40 * BIN / 2, FRACTIONS_NS);
    finish_at(row_end, row_end + BUSY_BIN_NS, 0);
    read_clock(start, row_end);
    settle(row_end);
    check_row("at the same time", 40 * BIN / 4, FRACTIONS_NS);
}

static void test_bin_is_compared_only_after_a_later_piece_ended(void)
{
    begin_rows();
    run_row(1, 1, LENGTH / 2);
    pass_gap(20 * BIN);
    CHECK_EQUAL("up to the last piece", governor.reviewed_ns, row_start + LENGTH);
    run_row(1, 1, LENGTH / 2);
    CHECK_EQUAL("and then the next", governor.reviewed_ns, row_end);
}

/* Two streams had 18 ms of work within 10 ms, half of which another process had. The excess may
 * have run later while there was work, by the clock; at a gap it must have been less. */
static void test_carried_excess_is_settled_before_the_next_gap(void)
{
    for (int gap = 0; gap < 2; gap++) {
        struct governor_piece piece = {.expected_ns = MS / 10, .joins = 1};

        begin_rows();
        run_row(1, 2, 9 * MS);
        if (gap)
            pass_gap(BIN);
        piece.from_ns = row_end;
        row_end = piece.given_ns = piece.until_ns = row_end + LENGTH;
        governor_finish(&governor, &piece, &view, row_end);
        read_clock(start, row_end);
        settle(row_end);
        check_row("without a gap and with one", gap ? LENGTH / 2 + MS / 10 : LENGTH, FRACTIONS_NS);
    }
}

static void test_without_clock_single_stream_is_not_corrected(void)
{
    for (int i = 0; i < 20; i++) {
        struct governor_piece piece = {
            row_start + (uint64_t) (i * LENGTH), row_start + (uint64_t) ((i + 1) * LENGTH),
            row_start + (uint64_t) ((i + 1) * LENGTH), .expected_ns = MS, .joins = 1};

        taken(piece);
        settle(piece.until_ns);
    }
    check_row("there never was one", 20 * MS, FRACTIONS_NS);
    CHECK_EQUAL("nothing was compared", governor.reviewed_ns, 0);
}

/* There is no other evidence: expectations may have been learned from streams that waited for each
 * other. */
static void test_without_clock_several_streams_took_all_their_time(void)
{
    for (int stopped = 0; stopped < 2; stopped++) {
        begin_rows();
        if (stopped)
            run_row(1, 2, LENGTH / 2);
        else
            row_end = row_start + LENGTH;
        view = (struct clock_view) {.met = 1};
        for (int i = 0; i < 20; i++) {
            struct governor_piece piece = {row_end, row_end,    row_end + LENGTH,
                                           MS,      .joins = 1, .crowded = 1};

            row_end = piece.until_ns;
            for (int stream = 0; stream < 2; stream++)
                governor_finish(&governor, &piece, &view, row_end);
            settle(row_end);
        }
        check_row("there was one, or never", (stopped ? LENGTH / 2 : 0) + 20 * LENGTH,
                  FRACTIONS_NS);
    }
}

static void test_time_beyond_the_clock_is_not_corrected(void)
{
    int64_t before;

    begin_rows();
    run_row(2, 1, 9 * MS);
    before = (int64_t) governor.busy_ns;
    view.valid = 0;
    for (int i = 0; i < 20; i++) {
        struct governor_piece piece = {row_end, row_end, row_end + LENGTH, 9 * MS, .joins = 1};

        row_end = piece.until_ns;
        governor_finish(&governor, &piece, &view, row_end);
        settle(row_end);
    }
    check_row("it was lost", before + 20 * 9 * MS, FRACTIONS_NS);
    row_end += 300 * (uint64_t) MS;
    read_clock(start, row_end);
    settle(row_end);
    check_row("and was found again", before + 20 * 9 * MS, FRACTIONS_NS);
}

/* Others published that they had *had_ns* of each cell, while the clock says that they had a half
 * from *divided_ns* on, and nothing until then. */
static void publish_others(uint32_t had_ns, uint32_t unsure, uint64_t divided_ns, uint64_t until_ns)
{
    struct clock_file page = page_of(divided_ns, until_ns);

    for (unsigned i = 0; i < OTHERS_CELLS; i++)
        page.others[i] = had_ns | 64 << OTHERS_PARTS_SHIFT | unsure;
    page.others_until_ns = until_ns;
    clock_judge(&view, &page, until_ns);
}

/* Others are known to have had a third of the device. */
static void know_others(uint64_t divided_ns, uint64_t until_ns)
{
    publish_others(OTHERS_CELL_NS / 3, 0, divided_ns, until_ns);
}

static void test_known_time_of_others_overrides_the_clock(void)
{
    uint64_t until = row_start + 4 * (uint64_t) LENGTH;

    begin_rows();
    know_others(start, row_start);
    finish_at(row_start, until, LENGTH);
    know_others(start, until + (uint64_t) BIN);
    settle(until + (uint64_t) BIN);
    CHECK(
        "what the others did not have, to half a millisecond and an eighth of the row",
        is_near((int64_t) governor.busy_ns, 4 * LENGTH * 2 / 3 - 4 * LENGTH / 8 - MS / 2, MS / 4));
    begin_rows();
    know_others(row_start, row_start);
    finish_at(row_start, until, 4 * LENGTH);
    know_others(until, until + (uint64_t) BIN);
    settle(until + (uint64_t) BIN);
    CHECK("and no more than that", is_near((int64_t) governor.busy_ns,
                                           4 * LENGTH * 2 / 3 + 4 * LENGTH / 8 + MS / 2, MS / 4));
}

/* What a row of 4 LENGTH is charged that is expected to take one, beside others that had *had_ns*
 * of each cell. */
static int64_t charge_beside(uint32_t had_ns, uint32_t unsure, int is_divided)
{
    uint64_t until = row_start + 4 * (uint64_t) LENGTH;
    uint64_t end = until + (uint64_t) BIN;

    begin_rows();
    publish_others(had_ns, unsure, start, row_start);
    finish_at(row_start, until, LENGTH);
    publish_others(had_ns, unsure, is_divided ? start : end, end);
    settle(end);
    return (int64_t) governor.busy_ns;
}

static void test_guess_at_little_that_others_had_counts_if_the_clock_agrees(void)
{
    uint32_t little = OTHERS_CELL_NS / 16, much = OTHERS_CELL_NS / 4;
    int64_t all = 4 * LENGTH, error = MS / 2 + all / 8;

    CHECK("the rest was its own, to half a millisecond and an eighth",
          is_near(charge_beside(little, OTHERS_UNSURE, 0), all - all / 16 - error, MS / 2));
    CHECK("without others the device loses no time in switches",
          is_near(charge_beside(0, OTHERS_UNSURE, 0), all - MS / 2, MS / 2));
    CHECK("more than little is a guess",
          is_near(charge_beside(much, OTHERS_UNSURE, 0), all - 5 * MS, MS / 2));
    CHECK("nor does it count if the clock says more",
          is_near(charge_beside(little, OTHERS_UNSURE, 1), all / 2 - 5 * MS, MS / 2));
}

/* One shape, whose launches take 0.2 or 1.8 ms, in pieces of one launch each. */
static void test_pieces_are_charged_the_mean_of_their_shape_on_average(void)
{
    int64_t charged = 0;
    uint64_t from = row_start;

    begin_rows();
    read_clock(start, row_start);
    for (int i = 0; i < 40; i++) {
        uint64_t ns = (uint64_t) (i % 2 ? 9 : 1) * (uint64_t) MS / 5;
        struct governor_piece piece = {
            .from_ns = from, .given_ns = from, .until_ns = from + ns, .expected_ns = MS};

        charged += governor_finish(&governor, &piece, &view, piece.until_ns);
        from = piece.until_ns;
    }
    CHECK("short ones can only have taken their time, and long ones take the rest",
          is_near(charged, 40 * MS, MS));
}

static void test_finished_work_is_published(void)
{
    uint64_t words[PROGRESS_WORDS] = {0};
    struct governor_piece piece = {.from_ns = row_start,
                                   .given_ns = row_start,
                                   .until_ns = row_start + 4 * (uint64_t) MS,
                                   .expected_ns = 4 * MS,
                                   .sure = 1};
    struct progress_point point;

    begin_rows();
    governor.progress.words = words;
    read_clock(start, row_start);
    governor_finish(&governor, &piece, &view, piece.until_ns);
    settle(piece.until_ns);
    point = progress_point(words[governor.progress.at], piece.until_ns);
    CHECK("its end", point.at_ns + 2 * WORK_UNIT_NS > piece.until_ns && !point.begins);
    CHECK_EQUAL("what it took", point.done, 4 * MS / WORK_UNIT_NS);
    CHECK("for sure", point.sure);
    piece.from_ns = piece.until_ns;
    piece.until_ns += 4 * (uint64_t) MS;
    piece.crowded = 1;
    governor_finish(&governor, &piece, &view, piece.until_ns);
    governor_finish(&governor, &piece, &view, piece.until_ns);
    settle(piece.until_ns);
    CHECK("not what several streams took",
          !progress_point(words[governor.progress.at], piece.until_ns).sure);
}

/* Work in flight may later turn out to have been running for some time already. */
static void test_review_waits_for_work_in_flight(void)
{
    struct governor_flight flight = {.running = 1};
    uint64_t until = row_start + 2 * LENGTH;

    begin_rows();
    flight.since_ns = row_start;
    finish_at(row_start, until, 2 * LENGTH);
    read_clock(start, until);
    governor_settle(&governor, &view, &flight, until);
    CHECK("the expectation holds, as far as it could be known then",
          is_near((int64_t) governor.busy_ns, LENGTH + ROW_ERROR_NS, FRACTIONS_NS));
    CHECK_EQUAL("nothing was compared", governor.reviewed_ns, row_start);
    finish_at(row_start, until, 2 * LENGTH);
    governor_settle(&governor, &view, &flight, until);
    CHECK_EQUAL("nor now", governor.reviewed_ns, row_start);
    flight.since_ns = row_start + LENGTH;
    governor_settle(&governor, &view, &flight, until);
    CHECK_EQUAL("up to where it may run", governor.reviewed_ns, row_start + LENGTH);
    settle(until);
    CHECK_EQUAL("once it is done, all", governor.reviewed_ns, until);
    check_row("with both of them the clock says how much", LENGTH, FRACTIONS_NS);
}

static void test_piece_is_compared_once_the_clock_covers_it(void)
{
    uint64_t until = row_start + 4 * LENGTH;
    uint64_t charged;

    read_clock(row_start, row_start); /* until then no other process had work */
    finish_at(row_start, until, 4 * LENGTH);
    charged = governor.busy_ns;
    CHECK_EQUAL("the last word holds: all of it", charged, 4 * LENGTH);
    settle(until);
    CHECK_EQUAL("which is paid", shared.busy_ns, charged);
    read_clock(row_start, until + 10 * (uint64_t) MS);
    settle(until + 10 * (uint64_t) MS);
    CHECK("then a half",
          is_near((int64_t) governor.busy_ns, 2 * LENGTH, 2 * ROW_ERROR_NS + 4 * LENGTH / 8));
    CHECK_EQUAL("and the rest is given back", shared.busy_ns, governor.busy_ns);
    charged = governor.busy_ns;
    settle(until + 20 * (uint64_t) MS);
    CHECK_EQUAL("once", governor.busy_ns, charged);
}

static void test_ratio_is_learned_from_long_rows_only(void)
{
    begin_rows();
    run_row(9, 1, 8 * MS);
    CHECK_EQUAL("94 ms say nothing", governor.ratio, 0);
    run_row(1, 1, 8 * MS);
    CHECK("105 ms do: half of the way from 1 to 0.655", is_near(governor.ratio, 54242, 300));
    for (int i = 0; i < 20; i++)
        run_row(10, 1, 8 * MS);
    CHECK("in the end all of it", is_near(governor.ratio, 42950, 600));
    for (int i = 0; i < 20; i++)
        run_row(10, 1, 4 * MS);
    CHECK("above 1, too", is_near(governor.ratio, 85900, 1200));
}

static void test_row_barely_beyond_the_error_has_little_weight(void)
{
    begin_rows();
    run_row(10, 1, LENGTH / 2 * 100 / 111);
    CHECK("within an eighth: nothing", is_near(governor.ratio, CLOCK_WHOLE, 1));
    run_row(10, 1, LENGTH / 2 * 100 / 114);
    CHECK("14 % more: half of the way to 3 %",
          is_near(governor.ratio, CLOCK_WHOLE * 1015 / 1000, CLOCK_WHOLE / 200));
    begin_rows();
    run_row(10, 1, LENGTH / 2 * 100 / 126);
    CHECK("a quarter more: half of all of it",
          is_near(governor.ratio, CLOCK_WHOLE * 113 / 100, CLOCK_WHOLE / 200));
}

static void test_ratio_is_bounded(void)
{
    begin_rows();
    run_row(10, 1, MS / 100);
    CHECK("from 1 to 4 at most, and half of the way",
          is_near(governor.ratio, CLOCK_WHOLE / 2 * 5, CLOCK_WHOLE / 100));
    for (int i = 0; i < 40; i++)
        run_row(10, 1, 2000 * MS);
    CHECK_EQUAL("an eighth at least", governor.ratio, CLOCK_WHOLE / 8);
}

static void run_long_row(struct governor_piece piece, int streams, int64_t late_ns)
{
    begin_rows();
    piece.expected_ns = 8 * MS;
    piece.joins = 1;
    for (int i = 0; i < 20; i++) {
        if (!late_ns) {
            run(LENGTH / BIN, streams, piece);
            continue;
        }
        piece.from_ns = row_end;
        piece.given_ns = row_end + (uint64_t) late_ns;
        row_end = piece.until_ns = row_end + LENGTH;
        governor_finish(&governor, &piece, &view, row_end);
        read_clock(start, row_end);
        settle(row_end);
    }
}

static void test_ratio_is_learned_from_certain_rows_only(void)
{
    run_long_row((struct governor_piece) {0}, 1, 0);
    CHECK("of known work of one stream", governor.ratio > 0);
    run_long_row((struct governor_piece) {.guessed = 1}, 1, 0);
    CHECK_EQUAL("not of guesses", governor.ratio, 0);
    begin_rows();
    run(LENGTH / BIN, 1, (struct governor_piece) {.expected_ns = 8 * MS, .joins = 1, .guessed = 1});
    run_row(9, 1, 8 * MS);
    CHECK_EQUAL("not of a row that began with one", governor.ratio, 0);
    run_long_row((struct governor_piece) {0}, 2, 0);
    CHECK_EQUAL("not of several streams", governor.ratio, 0);
    run_long_row((struct governor_piece) {0}, 1, LENGTH / 4);
    CHECK_EQUAL("not where there may have been gaps", governor.ratio, 0);
    run_long_row((struct governor_piece) {0}, 1, LENGTH / 16);
    CHECK("unless they are short", governor.ratio > 0);
}

static void run_short_row(void)
{
    run(20, 1, (struct governor_piece) {.expected_ns = 2 * MS, .joins = 1});
    pass_gap(BIN);
}

static int rows_until_doubt(void)
{
    uint32_t before = governor.ratio;
    int rows = 0;

    while (governor.ratio == before && rows++ < 100)
        run_short_row();
    CHECK("half of the way to 1", is_near(governor.ratio, (before + CLOCK_WHOLE) / 2, 1));
    return rows;
}

static void test_short_rows_make_the_ratio_doubtful(void)
{
    begin_rows();
    run_row(10, 1, 8 * MS);
    pass_gap(BIN);
    CHECK("it is known", governor.ratio > 0);
    CHECK("after 100 ms", is_near(rows_until_doubt(), 20, 1));
    CHECK("after as many again", is_near(rows_until_doubt(), 20, 1));
    for (int i = 0; i < 15; i++)
        rows_until_doubt();
    CHECK("in the end nothing is left of it", governor.ratio >= CLOCK_WHOLE - 8);
}

static void test_long_row_ends_the_doubt(void)
{
    uint32_t ratio;

    begin_rows();
    for (int i = 0; i < 15; i++)
        run_short_row();
    run_row(10, 1, 8 * MS);
    ratio = governor.ratio;
    pass_gap(BIN);
    for (int i = 0; i < 12; i++)
        run_short_row();
    CHECK_EQUAL("that there was before", governor.ratio, ratio);
}

static void test_certain_running_time_of_work(void)
{
    CHECK_EQUAL("alone all the time", governor_running(&no_clock, start, start + 30 * MS), 30 * MS);
    CHECK_EQUAL("before it began", governor_running(&no_clock, start, start - MS), 0);
    read_clock(start, row_start);
    CHECK_EQUAL("beside another one a half, less 5 ms",
                governor_running(&view, row_start, row_start + 200 * MS), 95 * MS);
    CHECK_EQUAL("of a short time perhaps nothing",
                governor_running(&view, row_start, row_start + MS), 0);
}

/* --- all together ----------------------------------------------------------------------------- */

enum { STREAMS = 3, QUEUED = 4 };

/* A stream of a simulated device: its work in flight runs one after the other. */
struct lane {
    struct governor_piece pieces[QUEUED];
    int count;
    uint64_t end_ns;  /* on the axis */
    uint64_t free_ns; /* when all its work is done */
};

static struct lane lanes[STREAMS];
static uint64_t state; /* xorshift, the same in each run */
static int64_t any_ns; /* time in which any stream ran */

static int64_t draw(int64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t) (state % (uint64_t) below);
}

static void seed(uint64_t number)
{
    state = number * UINT64_C(0x9e3779b97f4a7c15);
    memset(lanes, 0, sizeof(lanes));
    any_ns = 0;
}

static void launch(struct lane *lane, int64_t expected_ns, int64_t took_ns, uint64_t now)
{
    uint64_t from = lane->free_ns > now ? lane->free_ns : now;

    lane->pieces[lane->count++] = (struct governor_piece) {from, now, from + (uint64_t) took_ns,
                                                           expected_ns, .joins = from > now};
    lane->free_ns = from + (uint64_t) took_ns;
}

static void note_running(uint64_t from, uint64_t until)
{
    uint64_t last = from;

    for (int i = 0; i < STREAMS; i++)
        if (lanes[i].free_ns > last)
            last = lanes[i].free_ns < until ? lanes[i].free_ns : until;
    any_ns += (int64_t) (last - from);
}

/* Finish completed work, and settle with the rest. */
static void look(uint64_t now)
{
    struct governor_flight flight = {.since_ns = now};

    for (int i = 0; i < STREAMS; i++) {
        struct lane *lane = &lanes[i];
        int done = 0;

        while (done < lane->count && lane->pieces[done].until_ns <= now)
            governor_finish(&governor, &lane->pieces[done++], &view, now);
        lane->count -= done;
        memmove(lane->pieces, lane->pieces + done, (size_t) lane->count * sizeof(*lane->pieces));
    }
    for (int i = 0; i < STREAMS; i++) {
        struct lane *lane = &lanes[i];
        int64_t ahead = 0;
        uint64_t place;

        for (int j = 0; j < lane->count; j++)
            ahead += lane->pieces[j].expected_ns;
        place = governor_place(&governor, 0, ahead);
        lane->end_ns = lane->end_ns < place ? lane->end_ns : place;
        if (!lane->count)
            continue;
        flight.running = 1;
        flight.ahead_ns += ahead;
        if (lane->pieces[0].from_ns < flight.since_ns)
            flight.since_ns = lane->pieces[0].from_ns;
        if (lane->end_ns > flight.end_ns)
            flight.end_ns = lane->end_ns;
    }
    governor_settle(&governor, &view, &flight, now);
}

/* Streams that always have more work, expected too long or too short, concurrently; all of them
 * check every 100 us. The device is theirs for their share of the time. */
static void share_of_streams(uint32_t percent, int streams)
{
    struct governor_share share = {.own = CLOCK_WHOLE / 100 * percent};
    const uint64_t time = 5000 * MS;
    int64_t due = (int64_t) time / 100 * percent;
    uint64_t now = start, until;
    int unpaid = 0, unequal = 0, behind = 0;

    share.limit = share.own;
    for (; now < start + time; now += (uint64_t) MS / 10) {
        note_running(now - (uint64_t) MS / 10, now);
        look(now);
        for (int i = 0; i < streams; i++) {
            int64_t took = 1 + draw(draw(4) ? MS / 4 : 4 * MS);
            int64_t expected = took * (1 + draw(16)) / 8 + 1;
            uint64_t end = governor_place(&governor, lanes[i].end_ns, expected);

            if (lanes[i].count == QUEUED ||
                !governor_buy(&governor, &share, end, expected, now, &until))
                continue;
            unpaid += governor.paid_ns < end;
            lanes[i].end_ns = end;
            launch(&lanes[i], expected, took, now);
        }
        unequal += shared.busy_ns != governor.paid_ns;
        behind += governor.paid_ns < governor.busy_ns;
    }
    CHECK_EQUAL("what begins is paid, or another stream's", unpaid, 0);
    CHECK_EQUAL("all that was paid is from the budget", unequal, 0);
    CHECK_EQUAL("nothing is done that is not paid", behind, 0);
    CHECK("not more than the share", any_ns <= due + due / 50 + 40 * MS);
    CHECK("nor less", any_ns >= due - due / 50 - 40 * MS);
    CHECK("no more is measured than any ran", (int64_t) governor.busy_ns <= any_ns + any_ns / 50);
    look(now + 100 * (uint64_t) MS);
    CHECK_EQUAL("in the end what was measured is charged", shared.busy_ns, governor.busy_ns);
}

static void test_random_streams_get_their_share(void)
{
    for (uint64_t number = 1; number <= 12; number++) {
        begin();
        seed(number);
        share_of_streams((uint32_t) (10 + 20 * (number % 4)), 1 + (int) (number % STREAMS));
    }
}

/* For any order of buy, pay, trust, finish and settle, alone or beside others: the budget is
 * charged what is paid, and once all work is done that equals the measured time. */
static void play(int beside)
{
    uint64_t now = row_start, until;
    int64_t trusted = 0;
    int unequal = 0, negative = 0;

    for (int i = 0; i < 4000; i++) {
        struct lane *lane = &lanes[draw(STREAMS)];
        int64_t took = 1 + draw(draw(4) ? MS / 4 : 20 * MS);
        int64_t expected = took * (1 + draw(32)) / 8 + 1;
        uint64_t end = governor_place(&governor, lane->end_ns, expected);

        now += (uint64_t) draw(draw(8) ? MS / 10 : 4 * MS);
        if (beside && !draw(20)) {
            read_clock(draw(3) ? start : now, now);
            view.sharers = 2;
        }
        if (!draw(500))
            view.valid = 0;
        switch (draw(8)) {
        case 0:
            if (!governor_buy(&governor, &half, end, expected, now, &until))
                break;
            governor_trust(&governor, expected);
            trusted += expected;
            break;
        case 1:
            if (!draw(100))
                governor_reset_overlap(&governor);
            break;
        case 2:
        case 3:
            look(now);
            break;
        default:
            if (lane->count == QUEUED)
                break;
            if (!governor_buy(&governor, &half, end, expected, now, &until)) {
                if (draw(10))
                    break;
                governor_pay(&governor, end, expected);
            }
            lane->end_ns = end;
            launch(lane, expected, took, now);
            lane->pieces[lane->count - 1].guessed = !draw(10);
            lane->pieces[lane->count - 1].crowded = !draw(4);
        }
        unequal += shared.busy_ns != governor.paid_ns;
        negative += (int64_t) governor.busy_ns < 0 || governor.paid_ns > UINT64_MAX / 2;
    }
    CHECK_EQUAL("the budget is charged what is paid", unequal, 0);
    CHECK_EQUAL("nothing is less than nothing", negative, 0);
    CHECK("no more is measured than time passed",
          (int64_t) governor.busy_ns - trusted <= (int64_t) (now - row_start) + BIN);
    look(now + 1000 * (uint64_t) MS);
    CHECK_EQUAL("in the end what was measured is charged", shared.busy_ns, governor.busy_ns);
    CHECK_EQUAL("and paid", governor.paid_ns, governor.busy_ns);
    CHECK_EQUAL("and all is finished", work.begun, work.finished);
    CHECK("which is something", governor.busy_ns > (uint64_t) (100 * MS));
}

static void test_charges_equal_measurements(void)
{
    for (uint64_t number = 1; number <= 40; number++) {
        begin();
        seed(number);
        play((int) number % 2);
    }
}

enum { THREADS = 4, BUYS = 100000 };

static void *buy_often(void *unused)
{
    for (int64_t i = 1; i <= BUYS; i++)
        buy(i * 1000, 1000);
    return unused;
}

static void buy_with_threads(void)
{
    pthread_t threads[THREADS];

    shared.budget_ns = 1000 * MS;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, buy_often, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void test_concurrent_purchases_pay_once(void)
{
    buy_with_threads();
    CHECK_EQUAL("one by one", governor.paid_ns, THREADS * BUYS * 1000);
    CHECK_EQUAL("is charged once", shared.busy_ns, THREADS * BUYS * 1000);
    CHECK_EQUAL("from the budget", shared.budget_ns, 1000 * MS - INT64_C(1000) * THREADS * BUYS);
    begin();
    governor.overlap = CLOCK_WHOLE / THREADS / 2;
    buy_with_threads();
    CHECK_EQUAL("together", governor.paid_ns, BUYS * 1000);
    CHECK_EQUAL("is charged once", shared.busy_ns, BUYS * 1000);
    CHECK_EQUAL("and all is in flight", governor.ahead_ns, INT64_C(1000) * THREADS * BUYS);
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
        test_idle_times_are_published_when_over,
        test_idle_time_seen_twice_is_published_while_it_lasts,
        test_end_of_long_idle_time_is_published,
        test_short_idle_times_are_published,
        test_new_work_ends_published_idle_time,
        test_idle_words_wrap,
        test_contended_work_takes_its_expectation_unless_the_clock_contradicts,
        test_work_known_to_run_alone_is_charged_once,
        test_piece_is_alone_from_end_of_preceding_work,
        test_clock_gives_the_part_of_a_gapless_row,
        test_within_5_ms_the_clock_does_not_contradict,
        test_after_a_gap_nothing_carries_over,
        test_rows_of_several_streams_follow_the_clock,
        test_union_follows_the_clock_after_a_gap,
        test_bin_is_compared_only_after_a_later_piece_ended,
        test_carried_excess_is_settled_before_the_next_gap,
        test_without_clock_single_stream_is_not_corrected,
        test_without_clock_several_streams_took_all_their_time,
        test_time_beyond_the_clock_is_not_corrected,
        test_known_time_of_others_overrides_the_clock,
        test_guess_at_little_that_others_had_counts_if_the_clock_agrees,
        test_pieces_are_charged_the_mean_of_their_shape_on_average,
        test_finished_work_is_published,
        test_review_waits_for_work_in_flight,
        test_piece_is_compared_once_the_clock_covers_it,
        test_ratio_is_learned_from_long_rows_only,
        test_row_barely_beyond_the_error_has_little_weight,
        test_ratio_is_bounded,
        test_ratio_is_learned_from_certain_rows_only,
        test_short_rows_make_the_ratio_doubtful,
        test_long_row_ends_the_doubt,
        test_certain_running_time_of_work,
        test_random_streams_get_their_share,
        test_charges_equal_measurements,
        test_concurrent_purchases_pay_once,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
