/* SPDX-License-Identifier: Apache-2.0 */
/* test_busy.c -- device busy time of a process: the union over its streams. */
#include "core/busy.h"
#include "core/number.h"
#include "check.h"
#include "core/compiler.h"

#define BIN  ((int64_t) BUSY_BIN_NS)
#define PART ((int64_t) BUSY_PART_NS)
#define RING (BUSY_BINS * BIN)
#define HALF (BUSY_WHOLE / 2)

#define FIRST 20000 /* the number of the bin that begins at *start* */

static struct busy busy;
static const uint64_t start = FIRST * BUSY_BIN_NS;

/* A piece between two times after the start. The device had it from the beginning, other processes
 * had work as well. */
static struct busy_piece piece_of(int64_t from_ns, int64_t until_ns, int64_t taken_ns)
{
    return (struct busy_piece) {.from_ns = start + (uint64_t) from_ns,
                                .until_ns = start + (uint64_t) until_ns,
                                .given_ns = start + (uint64_t) from_ns,
                                .taken_ns = taken_ns};
}

static int64_t add_part(int64_t from_ns, int64_t until_ns, int64_t taken_ns)
{
    struct busy_piece piece = piece_of(from_ns, until_ns, taken_ns);

    return busy_add(&busy, &piece);
}

/* The piece had the whole device. */
static int64_t add(int64_t from_ns, int64_t until_ns)
{
    return add_part(from_ns, until_ns, until_ns - from_ns);
}

static int64_t add_certain(int64_t from_ns, int64_t given_ns, int64_t until_ns, int64_t taken_ns)
{
    struct busy_piece piece = piece_of(from_ns, until_ns, taken_ns);

    piece.given_ns = start + (uint64_t) given_ns;
    piece.certain = 1;
    return busy_add(&busy, &piece);
}

static int64_t add_joined(int64_t from_ns, int64_t until_ns, int joins)
{
    struct busy_piece piece = piece_of(from_ns, until_ns, until_ns - from_ns);

    piece.joins = joins;
    return busy_add(&busy, &piece);
}

/* Review the bin with that number after the start. */
static const struct busy_bin *review(uint64_t bin, int64_t *later_ns, int64_t *grown_ns)
{
    return busy_review(&busy, FIRST + bin, later_ns, grown_ns);
}

static void know(uint64_t bin, uint32_t rate)
{
    busy_know(&busy, FIRST + bin, rate, 0);
}

static void test_single_stream_counts_all_its_time(void)
{
    CHECK_EQUAL("within a bin", add(PART, 3 * PART), 2 * PART);
    CHECK_EQUAL("the next piece", add(3 * PART, BIN), BIN - 3 * PART);
    CHECK_EQUAL("over many bins", add(BIN, 10 * BIN + PART), 9 * BIN + PART);
    CHECK_EQUAL("after a gap", add(20 * BIN, 20 * BIN + 7), 7);
    CHECK_EQUAL("until_ns is the end of the last", busy.until_ns, start + 20 * BUSY_BIN_NS + 7);
}

static void test_empty_piece_counts_nothing(void)
{
    CHECK_EQUAL("no time", add(PART, PART), 0);
    CHECK_EQUAL("backwards", add_part(2 * PART, PART, PART), 0);
    CHECK_EQUAL("until_ns stays", busy.until_ns, 0);
    CHECK_EQUAL("nothing taken", add_part(PART, 2 * PART, 0), 0);
}

static void test_simultaneous_pieces_count_once(void)
{
    CHECK_EQUAL("the first", add(0, 10 * BIN), 10 * BIN);
    CHECK_EQUAL("the same again", add(0, 10 * BIN), 0);
    CHECK_EQUAL("within it", add(3 * BIN + PART, 4 * BIN), 0);
    CHECK_EQUAL("half of it beyond", add(5 * BIN, 15 * BIN), 5 * BIN);
    CHECK_EQUAL("around all", add(0, 20 * BIN), 5 * BIN);
    CHECK_EQUAL("within one bin", add(30 * BIN, 30 * BIN + 4 * PART), 4 * PART);
    CHECK_EQUAL("half of that beyond", add(30 * BIN + 2 * PART, 30 * BIN + 6 * PART), 2 * PART);
    for (int stream = 0; stream < 20; stream++)
        CHECK_EQUAL("twenty more streams", add(0, 20 * BIN), 0);
}

/* A piece expected to take a tenth of its actual time; whether other processes had work is unknown.
 */
static int64_t add_short(int64_t given_ns, int64_t until_ns)
{
    struct busy_piece piece = piece_of(0, until_ns, (until_ns - given_ns) / 10);

    piece.given_ns = start + (uint64_t) given_ns;
    return busy_add(&busy, &piece);
}

static void test_time_shared_with_other_processes_is_not_certain(void)
{
    int64_t later = 0, grown;

    add_short(0, BIN);
    know(0, BUSY_WHOLE);
    review(0, &later, &grown);
    CHECK_EQUAL("as expected", grown, 0);
}

static void test_pieces_may_come_in_any_order(void)
{
    CHECK_EQUAL("the last first", add(8 * BIN, 10 * BIN), 2 * BIN);
    CHECK_EQUAL("then the first", add(0, 2 * BIN), 2 * BIN);
    CHECK_EQUAL("then between, over both", add(BIN, 9 * BIN), 6 * BIN);
    CHECK_EQUAL("until_ns never goes back", busy.until_ns, start + 10 * BUSY_BIN_NS);
}

/* Two streams with half of the device each may have run one after the other or at the same time. As
 * long as both fit into the time they are summed; beyond that they must have overlapped. */
static void test_streams_sharing_the_device_are_summed_until_they_must_overlap(void)
{
    CHECK_EQUAL("a half", add_part(0, 8 * BIN, 4 * BIN), 4 * BIN);
    CHECK_EQUAL("both fit", add_part(0, 8 * BIN, 4 * BIN), 4 * BIN);
    CHECK_EQUAL("a third does not", add_part(0, 8 * BIN, 4 * BIN), 0);
    CHECK_EQUAL("after them", add_part(8 * BIN, 18 * BIN, 5 * BIN), 5 * BIN);
    CHECK_EQUAL("within a bin", add_part(20 * BIN, 20 * BIN + 32 * PART, 8 * PART), 8 * PART);
    CHECK_EQUAL("disjoint", add_part(20 * BIN + 32 * PART, 20 * BIN + 64 * PART, 8 * PART),
                8 * PART);
}

static void test_several_streams_count_at_most_the_known_rate(void)
{
    for (uint64_t bin = 0; bin < 8; bin++)
        know(bin, HALF);
    CHECK_EQUAL("a half", add_part(0, 8 * BIN, 4 * BIN), 4 * BIN);
    CHECK_EQUAL("which was all that could be had", add_part(0, 8 * BIN, 4 * BIN), 0);
    CHECK_EQUAL("the rate does not limit a single piece", add(7 * BIN, 7 * BIN), 0);
}

static void test_single_piece_counts_its_time_at_any_rate(void)
{
    know(0, HALF / 2);
    CHECK_EQUAL("more than the rate", add(0, BIN), BIN);
}

static void test_certain_time_is_a_lower_bound(void)
{
    CHECK_EQUAL("all of it", add_certain(0, 0, BIN, 0), BIN);
    CHECK_EQUAL("once", add_certain(0, 0, BIN, 0), 0);
    CHECK_EQUAL("from where the device had all of it",
                add_certain(2 * BIN, 2 * BIN + 60 * PART, 4 * BIN, 0), BIN + 4 * PART);
    CHECK_EQUAL("whole parts", add_certain(6 * BIN + 1, 6 * BIN + 1, 6 * BIN + 4 * PART - 1, 0),
                2 * PART);
    CHECK_EQUAL("less than a part is not certain",
                add_certain(7 * BIN, 7 * BIN, 7 * BIN + PART - 1, 0), 0);
    CHECK_EQUAL("beside other processes nothing is", add_part(9 * BIN, 10 * BIN, 0), 0);
    CHECK_EQUAL("given before it could run", add_certain(11 * BIN, 10 * BIN, 12 * BIN, 0), BIN);
    know(12, HALF);
    CHECK_EQUAL("the rate does not lower it", add_certain(12 * BIN, 12 * BIN, 13 * BIN, BIN), BIN);
    CHECK_EQUAL("nor with a second stream", add_certain(12 * BIN, 12 * BIN, 13 * BIN, BIN), 0);
}

/* Many short pieces lie within one part and are not mistaken for simultaneous ones. */
static void test_pieces_shorter_than_a_part_count_separately(void)
{
    int64_t grown = 0;

    for (int64_t at = 0; at < BIN; at += 1000)
        grown += add(at, at + 250);
    CHECK_EQUAL("all of them", grown, (BIN / 1000 + 1) * 250);
    grown = 0;
    for (int64_t at = 10 * BIN; at < 11 * BIN; at += 1000)
        grown += add(at, at + 1000) + add(at, at + 1000);
    CHECK("two streams without a gap, once", grown >= BIN && grown <= BIN + 2 * PART);
}

static void test_piece_longer_than_the_ring_counts_in_full(void)
{
    int64_t whole = 5 * RING;
    int64_t grown = add_part(0, 10 * RING, whole);

    CHECK("a half of it", grown <= whole && grown >= whole - BUSY_BINS);
    CHECK_EQUAL("what is older than the ring counts once", add(RING, 2 * RING), 0);
    grown = add(8 * RING, 13 * RING);
    CHECK("a piece that began before counts from the end of the last on",
          grown <= 3 * RING && grown >= 3 * RING - BUSY_BINS);
}

static void test_pieces_older_than_the_ring_count_uncovered_time(void)
{
    CHECK_EQUAL("one", add(0, BIN), BIN);
    CHECK_EQUAL("much later", add(2 * RING, 2 * RING + BIN), BIN);
    CHECK_EQUAL("older than the ring", add(BIN, 3 * BIN), 0);
    CHECK_EQUAL("until_ns stays", busy.until_ns, start + (uint64_t) (2 * RING + BIN));
    CHECK_EQUAL("from before the ring into it", add(BIN, 2 * RING), RING - 2 * BIN);
    CHECK_EQUAL("the oldest bin is in the ring", add(RING + 2 * BIN, RING + 3 * BIN), 0);
}

static void test_bins_of_another_ring_lap_are_not_reused(void)
{
    int64_t later = 0, grown = 1;

    CHECK_EQUAL("a bin", add_certain(0, 0, BIN, BIN), BIN);
    know(0, BUSY_WHOLE);
    CHECK("can be reviewed", review(0, &later, &grown) != NULL);
    CHECK("the same place one lap later cannot", !review(BUSY_BINS, &later, &grown));
    CHECK_EQUAL("and grows nothing", grown, 0);
    CHECK_EQUAL("its time is new", add(RING, RING + PART), PART);
    CHECK("the bin of the lap before is gone", !review(0, &later, &grown));
    CHECK("its rate, too", !review(BUSY_BINS, &later, &grown));
    know(BUSY_BINS, HALF);
    CHECK_EQUAL("covers nothing of the lap before",
                busy_length(review(BUSY_BINS, &later, &grown)->parts), PART);
    know(2 * BUSY_BINS, HALF);
    CHECK("a rate alone makes a bin, without work", !review(2 * BUSY_BINS, &later, &grown));
    CHECK_EQUAL("in which work counts once", add(2 * RING, 2 * RING + BIN), BIN);
    CHECK_EQUAL("in which work counts once", add(2 * RING, 2 * RING + BIN), 0);
}

static void test_first_bins_after_clock_start(void)
{
    struct busy_piece piece = {.until_ns = 10 * BUSY_BIN_NS, .taken_ns = 10 * BIN};

    CHECK_EQUAL("from time 0 on", busy_add(&busy, &piece), 10 * BIN);
    CHECK_EQUAL("once", busy_add(&busy, &piece), 0);
}

static void test_bin_records_gaps(void)
{
    static const struct {
        const char *sentence;
        int64_t gap;
        int joins, whole;
    } rows[] = {
        {"one piece after another", 0, 1, 1},
        {"not known to follow at once", 0, 0, 0},
        {"a gap of two parts", 2 * PART, 1, 0},
    };

    for (size_t row = 0; row < ARRAY_SIZE(rows); row++) {
        int64_t at = 10 * BIN * (int64_t) row, later = 0, grown;
        uint64_t bin = 10 * row;

        add_joined(at, at + BIN / 2 + 7, 0);
        add_joined(at + BIN / 2 + 7 + rows[row].gap, at + 2 * BIN - 5, rows[row].joins);
        add_joined(at + 2 * BIN - 5, at + 3 * BIN, 1);
        for (uint64_t i = 0; i < 3; i++)
            know(bin + i, BUSY_WHOLE);
        CHECK_EQUAL(rows[row].sentence, review(bin, &later, &grown)->joined == UINT64_MAX,
                    rows[row].whole);
        CHECK("a boundary within a part is no gap",
              review(bin + 1, &later, &grown)->joined == UINT64_MAX);
        CHECK("nor is one at the end of a bin",
              review(bin + 2, &later, &grown)->joined == UINT64_MAX);
    }
}

static void test_bin_records_certain_busy_parts(void)
{
    struct busy_piece late = piece_of(0, BIN, BIN);
    const struct busy_bin *bin;
    int64_t later = 0, grown;

    late.given_ns += 48 * BUSY_PART_NS;
    busy_add(&busy, &late);
    add(8 * PART, 16 * PART);
    know(0, BUSY_WHOLE);
    bin = review(0, &later, &grown);
    CHECK_EQUAL("it may have run all the time", busy_length(bin->parts), BIN);
    CHECK_EQUAL("and did in the end, and where another stream had work", busy_length(bin->given),
                24 * PART);
}

static void test_bin_records_guessed_time(void)
{
    struct busy_piece guessed = piece_of(0, PART, PART);
    int64_t later = 0, grown;

    guessed.guessed = 1;
    busy_add(&busy, &guessed);
    add(PART, 2 * BIN);
    know(0, BUSY_WHOLE);
    know(1, BUSY_WHOLE);
    CHECK("it was", review(0, &later, &grown)->guessed);
    CHECK("the next one was not", !review(1, &later, &grown)->guessed);
}

static void test_review_of_bin_with_unknown_time(void)
{
    int64_t later = 3 * PART, grown = 1;

    CHECK("nothing ran and no rate is known", !review(0, &later, &grown));
    add(0, BIN);
    CHECK("no rate is known", !review(0, &later, &grown));
    know(1, HALF);
    CHECK("nothing ran", !review(1, &later, &grown));
    CHECK_EQUAL("grows nothing", grown, 0);
    CHECK_EQUAL("the caller decides about what is left over", later, 3 * PART);
}

/* One piece took the whole first bin, another as long within two: half of that counts as its time
 * in the first bin, but it may have run in the second. */
static void test_review_carries_excess_to_next_bin(void)
{
    int64_t later = 0, grown;
    const struct busy_bin *bin;

    add(0, BIN);
    add_part(0, 2 * BIN, BIN);
    add_part(2 * BIN, 3 * BIN, 0);
    for (uint64_t i = 0; i < 3; i++)
        know(i, BUSY_WHOLE);
    bin = review(0, &later, &grown);
    CHECK_EQUAL("the first bin has no more", grown, 0);
    CHECK_EQUAL("it is full", bin->counted_ns, BIN);
    CHECK_EQUAL("a half is left over", later, BIN / 2);
    bin = review(1, &later, &grown);
    CHECK_EQUAL("the second takes it", grown, BIN / 2);
    CHECK_EQUAL("and counts all", bin->counted_ns, BIN);
    CHECK_EQUAL("nothing is left over", later, 0);
    review(2, &later, &grown);
    CHECK_EQUAL("the third has no work to take", grown, 0);
}

/* Together they may have had 4.3 s later, which 32 bits do not hold. */
static void test_review_carries_excess_of_many_long_pieces(void)
{
    int64_t half = INT64_C(1) << 29, later = 0, grown;

    for (int i = 0; i < 16; i++)
        add_part(BIN - half, BIN + half, half);
    know(0, BUSY_WHOLE);
    review(0, &later, &grown);
    CHECK_EQUAL("each had a half of the bin, which holds two", later, 7 * BIN);
}

/* Two pieces ran in all of the first bin, and a third one afterwards. */
static void test_review_carries_nothing_that_must_have_overlapped(void)
{
    int64_t later = 0, grown;

    add(0, BIN);
    add(0, BIN);
    add_part(BIN, 2 * BIN, 0);
    know(0, BUSY_WHOLE);
    know(1, BUSY_WHOLE);
    review(0, &later, &grown);
    CHECK_EQUAL("nothing is left over", later, 0);
    review(1, &later, &grown);
    CHECK_EQUAL("the second grows by nothing", grown, 0);
}

/* Beside other processes they may have waited for those. */
static void test_review_carries_all_excess_beside_others(void)
{
    int64_t later = 0, grown;

    add(0, BIN);
    add(0, BIN);
    know(0, BUSY_WHOLE - 1);
    review(0, &later, &grown);
    CHECK("all is left over", later >= BIN);
}

static void test_review_carries_at_most_the_rate_of_each_bin(void)
{
    int64_t later = 5 * BIN / 4, grown;

    add_part(0, 2 * BIN, 0);
    add_part(2 * BIN, 2 * BIN + 16 * PART, 0);
    know(0, HALF);
    know(1, HALF / 2);
    know(2, BUSY_WHOLE - 1);
    review(0, &later, &grown);
    CHECK_EQUAL("a half", grown, BIN / 2);
    review(1, &later, &grown);
    CHECK_EQUAL("a quarter", grown, BIN / 4);
    CHECK_EQUAL("the rest stays", later, BIN / 2);
    review(2, &later, &grown);
    CHECK("as much as is covered", grown >= 16 * PART - 1 && grown <= 16 * PART);
    CHECK_EQUAL("the rest stays", later, BIN / 2 - grown);
}

static void test_review_refunds_nothing_of_a_single_stream(void)
{
    int64_t later = 0, grown;

    add(0, BIN);
    know(0, HALF);
    CHECK_EQUAL("more than the rate", review(0, &later, &grown)->counted_ns, BIN);
    CHECK_EQUAL("no change", grown, 0);
    CHECK_EQUAL("nothing is left over", later, 0);
}

/* xorshift, the same in each run */
static int64_t draw(uint64_t *state, int64_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int64_t) (*state % (uint64_t) below);
}

enum { PIECES = 400, MODEL_BINS = 400, MODEL_PARTS = MODEL_BINS * 64 };

static unsigned char covered[MODEL_PARTS];

/* Count the parts that are covered for the first time. */
static int64_t cover(int64_t first, int64_t end)
{
    int64_t fresh = 0;

    for (int64_t part = first; part < end; part++) {
        fresh += !covered[part];
        covered[part] = 1;
    }
    return fresh;
}

static void test_random_certain_pieces_count_covered_parts(void)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15);

        memset(&busy, 0, sizeof(busy));
        memset(covered, 0, sizeof(covered));
        for (int i = 0; i < PIECES; i++) {
            int64_t length = 1 + draw(&state, i % 10 ? 80 : 2000);
            int64_t first = draw(&state, MODEL_PARTS - length);
            int64_t from = first * PART, until = (first + length) * PART;

            CHECK_EQUAL("each part once, whatever the piece is said to have taken",
                        add_certain(from, from, until, draw(&state, length * PART + 1)),
                        cover(first, first + length) * PART);
        }
    }
}

static unsigned char nanoseconds[4 * BUSY_BIN_NS];

/* Two to five streams with pieces of any length and some gaps, compared in each nanosecond. */
static void test_random_streams_count_their_union(void)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t state = seed * UINT64_C(0xd6e8feb86659fd93);
        int64_t at[5] = {0}, streams = 2 + (int64_t) seed % 4, longest = seed % 2 ? 9000 : 90000;
        int64_t grown = 0, taken = 0, truth = 0, pieces = 0;

        memset(&busy, 0, sizeof(busy));
        memset(nanoseconds, 0, sizeof(nanoseconds));
        for (int64_t stream = 0; stream < streams; stream = draw(&state, streams)) {
            int64_t from = at[stream] + draw(&state, 2) * draw(&state, longest);
            int64_t until = from + 1 + draw(&state, longest);

            if (until >= (int64_t) sizeof(nanoseconds))
                break;
            memset(&nanoseconds[from], 1, (size_t) (until - from));
            at[stream] = until;
            grown += add(from, until);
            taken += until - from;
            pieces++;
        }
        for (size_t i = 0; i < sizeof(nanoseconds); i++)
            truth += nanoseconds[i];
        CHECK("no less than the union", grown >= truth);
        CHECK("no more than a part at each end of a piece", grown <= truth + 2 * pieces * PART);
        CHECK("no more than the sum", grown <= taken && taken > truth);
    }
}

static int64_t covered_in(uint64_t bin)
{
    int64_t parts = 0;

    for (uint64_t part = bin * 64; part < bin * 64 + 64; part++)
        parts += covered[part];
    return parts * PART;
}

/* Pieces that took any part of their time, and bins with any rate or none, known early or late. */
static void test_random_pieces_count_at_most_covered_time(void)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t state = seed * UINT64_C(0x2545f4914f6cdd1d);
        int64_t total = 0, taken = 0, later = 0, counted = 0, all = 0;

        memset(&busy, 0, sizeof(busy));
        memset(covered, 0, sizeof(covered));
        for (int i = 0; i < PIECES; i++) {
            int64_t length = 1 + draw(&state, i % 10 ? 200 : 4000);
            int64_t first = draw(&state, MODEL_PARTS - length);
            struct busy_piece piece =
                piece_of(first * PART, (first + length) * PART, draw(&state, length * PART + 1));

            piece.certain = !draw(&state, 4);
            piece.given_ns += (uint64_t) draw(&state, length * PART);
            total += busy_add(&busy, &piece);
            taken += piece.taken_ns;
            all += cover(first, first + length) * PART;
            know((uint64_t) draw(&state, MODEL_BINS), (uint32_t) draw(&state, BUSY_WHOLE + 1));
            CHECK("between nothing and all that was covered", total >= 0 && total <= all);
        }
        for (uint64_t number = 0; number < MODEL_BINS; number++) {
            int64_t grown;
            const struct busy_bin *bin = review(number, &later, &grown);

            CHECK("nothing is owed to a bin", later >= 0 && later <= taken);
            CHECK("where nothing can be said nothing grows", bin || !grown);
            total += grown;
            if (bin) {
                CHECK_EQUAL("the same parts", busy_length(bin->parts), covered_in(number));
                CHECK("no more than those", bin->counted_ns <= covered_in(number));
            }
            if (busy.bins[(FIRST + number) % BUSY_BINS].number == FIRST + number)
                counted += busy.bins[(FIRST + number) % BUSY_BINS].counted_ns;
        }
        CHECK_EQUAL("all growth is the sum over the bins", total, counted);
        CHECK("no more than was covered", total <= all);
    }
}

/* Three streams that are busy all the time, on a device that does one piece after the other: once
 * reviewed, the union is all their work. */
static void test_reviewed_bins_keep_all_work_of_streams_in_turn(void)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15);
        int64_t total = 0, taken = 0, later = 0, pieces = 0;
        int64_t from[3] = {0};

        memset(&busy, 0, sizeof(busy));
        for (int64_t at = 0; at < MODEL_BINS * BIN; pieces++) {
            int64_t until = smaller(at + (1 + draw(&state, 500)) * PART, MODEL_BINS * BIN);
            int64_t *begin = &from[draw(&state, 3)];

            total += add_part(*begin, until, until - at);
            taken += until - at;
            *begin = at = until;
        }
        for (uint64_t number = 0; number < MODEL_BINS; number++) {
            int64_t grown;

            know(number, BUSY_WHOLE);
            review(number, &later, &grown);
            total += grown;
        }
        CHECK("no more than all work", total + later <= taken);
        CHECK("no less, but for fractions in each bin", total >= taken - pieces - 6 * MODEL_BINS);
    }
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_single_stream_counts_all_its_time,
        test_empty_piece_counts_nothing,
        test_simultaneous_pieces_count_once,
        test_time_shared_with_other_processes_is_not_certain,
        test_pieces_may_come_in_any_order,
        test_streams_sharing_the_device_are_summed_until_they_must_overlap,
        test_several_streams_count_at_most_the_known_rate,
        test_single_piece_counts_its_time_at_any_rate,
        test_certain_time_is_a_lower_bound,
        test_pieces_shorter_than_a_part_count_separately,
        test_piece_longer_than_the_ring_counts_in_full,
        test_pieces_older_than_the_ring_count_uncovered_time,
        test_bins_of_another_ring_lap_are_not_reused,
        test_first_bins_after_clock_start,
        test_bin_records_gaps,
        test_bin_records_certain_busy_parts,
        test_bin_records_guessed_time,
        test_review_of_bin_with_unknown_time,
        test_review_carries_excess_to_next_bin,
        test_review_carries_excess_of_many_long_pieces,
        test_review_carries_nothing_that_must_have_overlapped,
        test_review_carries_all_excess_beside_others,
        test_review_carries_at_most_the_rate_of_each_bin,
        test_review_refunds_nothing_of_a_single_stream,
        test_random_certain_pieces_count_covered_parts,
        test_random_streams_count_their_union,
        test_random_pieces_count_at_most_covered_time,
        test_reviewed_bins_keep_all_work_of_streams_in_turn,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        memset(&busy, 0, sizeof(busy));
        tests[i]();
    }
    return check_end();
}
