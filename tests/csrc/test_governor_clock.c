/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor_clock.c -- the governor beside others: charges that the clock corrects. */
#include "check.h"
#include "core/compiler.h"
#include "governor_rows.h"

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

/* --- work that must have run alone ------------------------------------------------------------ */

/* A clock by which the process in slot 0 was alone from *from* to *until*. */
static void read_moment(uint64_t from, uint64_t until)
{
    struct clock_file page = page_of(start, row_start + 200 * (uint64_t) MS);

    page.moments[3] = (struct clock_alone) {row_start + from, row_start + until, 1, 0};
    clock_evaluate(&view, &page, page.beat_ns);
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

/* --- rows of work without a gap --------------------------------------------------------------- */

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

int main(void)
{
    static void (*const tests[])(void) = {
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
        test_certain_running_time_of_work,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
