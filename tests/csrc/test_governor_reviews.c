/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor_reviews.c -- the governor beside others: doubtful costs, and their ratio. */
#include "check.h"
#include "core/compiler.h"
#include "governor_rows.h"

/* Others published that they had *had_ns* of each cell, while the clock says that they had a half
 * from *divided_ns* on, and nothing until then. */
static void publish_others(uint32_t had_ns, uint32_t unsure, uint64_t divided_ns, uint64_t until_ns)
{
    struct clock_file page = page_of(divided_ns, until_ns);

    for (unsigned i = 0; i < OTHERS_CELLS; i++)
        page.others[i] = had_ns | 64 << OTHERS_PARTS_SHIFT | unsure;
    page.others_until_ns = until_ns;
    clock_evaluate(&view, &page, until_ns);
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

/* Beside others that had a third: a row of 4 LENGTH, expected to take *expected_ns*. */
static void review_row(int64_t expected_ns, int mixed)
{
    uint64_t until = row_start + 4 * (uint64_t) LENGTH;
    struct governor_piece piece = {row_start,  row_start, until,         expected_ns,
                                   .joins = 1, .sure = 1, .mixed = mixed};

    begin_rows();
    know_others(start, row_start);
    governor_finish(&governor, &piece, &view, until);
    know_others(start, until + (uint64_t) BIN);
    settle(until + (uint64_t) BIN);
}

static void test_costs_are_doubted_after_a_row_with_low_charges(void)
{
    int64_t own = 4 * LENGTH * 2 / 3;

    review_row(own, 0);
    CHECK_EQUAL("right charges", governor.suspect_ns, 0);
    review_row(own - LENGTH / 8, 0);
    CHECK_EQUAL("about right", governor.suspect_ns, 0);
    review_row(own / 4, 0);
    CHECK("much too low, for a while",
          governor.suspect_ns > row_start + 4 * (uint64_t) LENGTH &&
              governor.suspect_ns < row_start + 4 * (uint64_t) LENGTH + 200 * (uint64_t) MS);
}

static void test_means_of_different_times_follow_the_clock_closely(void)
{
    int64_t own = 4 * LENGTH * 2 / 3;

    review_row(own / 4, 1);
    CHECK("to half a millisecond and a thirtieth of the row",
          is_near((int64_t) governor.busy_ns, own - 4 * LENGTH / 32 - MS / 2, MS / 4));
}

/* What a row of 4 LENGTH is charged, while others had work, and how much of the device is a guess.
 */
static int64_t charge_by_guess(int64_t expected_ns, int sure, int is_divided)
{
    uint64_t until = row_start + 4 * (uint64_t) LENGTH;
    uint64_t end = until + (uint64_t) BIN;

    begin_rows();
    publish_others(OTHERS_CELL_NS / 2, OTHERS_UNSURE, start, row_start);
    for (uint64_t from = row_start; from < until; from += LENGTH / 10) {
        struct governor_piece piece = {.from_ns = from,
                                       .given_ns = from,
                                       .until_ns = from + LENGTH / 10,
                                       .expected_ns = expected_ns / 40,
                                       .joins = 1,
                                       .sure = sure};

        governor_finish(&governor, &piece, &view, piece.until_ns);
    }
    publish_others(OTHERS_CELL_NS / 2, OTHERS_UNSURE, is_divided ? start : end, end);
    settle(end);
    return (int64_t) governor.busy_ns;
}

static void test_known_costs_count_more_than_a_guess_at_what_others_had(void)
{
    CHECK("an even division corrects costs that are not certain",
          is_near(charge_by_guess(LENGTH, 0, 1), 2 * LENGTH - 5 * MS - 2 * LENGTH / 8, 4 * MS));
    CHECK("but not those that are", is_near(charge_by_guess(LENGTH, 1, 1), LENGTH, MS / 100));
    CHECK("unless these are impossible", charge_by_guess(LENGTH, 1, 0) > 3 * LENGTH / 2);
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

int main(void)
{
    static void (*const tests[])(void) = {
        test_known_time_of_others_overrides_the_clock,
        test_costs_are_doubted_after_a_row_with_low_charges,
        test_means_of_different_times_follow_the_clock_closely,
        test_known_costs_count_more_than_a_guess_at_what_others_had,
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
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
