/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c -- a process's published progress points. */
#include "check.h"
#include "core/progress.h"

#include <string.h>

#define UNIT  ((uint64_t) WORK_UNIT_NS)
#define MS    (1000 * UNIT)
#define START (UINT64_C(5000000) * UNIT)

static uint64_t words[PROGRESS_WORDS];
static struct progress progress;

static void begin(void)
{
    memset(words, 0, sizeof(words));
    progress = (struct progress) {.words = words};
}

static void add(uint64_t from_ns, uint64_t until_ns, uint64_t taken_ns, int sure)
{
    progress_add(&progress, START + from_ns, START + until_ns, (int64_t) taken_ns, sure);
}

/* The *back*th point before the last. */
static struct progress_point point(unsigned back, uint64_t now)
{
    return progress_point(words[(progress.at + PROGRESS_WORDS - back) % PROGRESS_WORDS], now);
}

static void check_point(unsigned back, uint64_t at_ns, uint64_t done_ns, int begins, int sure)
{
    struct progress_point found = point(back, START + 100 * MS);

    CHECK_EQUAL("when", found.at_ns, START + at_ns);
    CHECK_EQUAL("what it had by then", found.done, done_ns / UNIT);
    CHECK_EQUAL("begins", found.begins, begins);
    CHECK_EQUAL("sure", found.sure, sure);
}

static unsigned count(void)
{
    unsigned found = 0;

    for (unsigned i = 0; i < PROGRESS_WORDS; i++)
        found += words[i] != 0;
    return found;
}

static void test_work_has_begin_and_end(void)
{
    begin();
    add(MS, 3 * MS, MS, 1);
    check_point(1, MS, 0, 1, 1);
    check_point(0, 3 * MS, MS, 0, 1);
    add(3 * MS, 4 * MS, MS, 1);
    check_point(0, 4 * MS, 2 * MS, 0, 1);
    CHECK_EQUAL("work that follows at once has an end alone", count(), 3);
    add(6 * MS, 7 * MS, MS / 2, 1);
    check_point(1, 6 * MS, 2 * MS, 1, 1);
    check_point(0, 7 * MS, 2 * MS + MS / 2, 0, 1);
}

static void test_short_work_is_published_together(void)
{
    begin();
    for (uint64_t i = 0; i < 50; i++)
        add(i * 20 * UNIT, (i * 20 + 15) * UNIT, 15 * UNIT, 1);
    CHECK("1 ms of work of 15 us with gaps of 5 us", count() <= 6);
    check_point(0, 49 * 20 * UNIT + 15 * UNIT, 50 * 15 * UNIT, 0, 1);
}

static void test_guess_is_published_separately(void)
{
    begin();
    add(0, 10 * UNIT, 10 * UNIT, 1);
    add(10 * UNIT, 20 * UNIT, 10 * UNIT, 0);
    check_point(0, 20 * UNIT, 20 * UNIT, 0, 0);
    add(20 * UNIT, 30 * UNIT, 10 * UNIT, 1);
    check_point(1, 20 * UNIT, 20 * UNIT, 0, 0);
    check_point(0, 30 * UNIT, 30 * UNIT, 0, 1);
}

static void test_time_does_not_go_back(void)
{
    begin();
    add(0, 5 * MS, MS, 1);
    add(MS, 3 * MS, MS, 1);
    check_point(0, 5 * MS, 2 * MS, 0, 1);
    add(5 * MS, 6 * MS, 0, 1);
    add(5 * MS, 7 * MS, 0, 1);
    check_point(0, 7 * MS, 2 * MS, 0, 1);
    progress_add(&progress, START + 7 * MS, START + 8 * MS, -5, 1);
    check_point(0, 8 * MS, 2 * MS, 0, 1);
}

static void test_old_and_invalid_words_are_ignored(void)
{
    uint64_t word;

    begin();
    add(0, MS, MS, 1);
    word = words[progress.at];
    CHECK_EQUAL("as it is", progress_point(word, START + MS).at_ns, START + MS);
    CHECK_EQUAL("later than now", progress_point(word, START).at_ns, 0);
    CHECK_EQUAL("the time wraps", progress_point(word, START + MS + (UNIT << 30)).at_ns,
                START + MS + (UNIT << 30));
    CHECK_EQUAL("no word", progress_point(0, START).at_ns, 0);
    CHECK_EQUAL("before there was time", progress_point(UINT64_MAX, 10 * UNIT).at_ns, 0);
}

static void test_without_words_there_are_no_points(void)
{
    begin();
    progress.words = NULL;
    add(0, MS, MS, 1);
    CHECK_EQUAL("nothing", count(), 0);
}

static struct busy busy;

static void begin_bins(void)
{
    begin();
    busy = (struct busy) {0};
    progress.shown_ns = START;
}

static void finish(uint64_t from_ns, uint64_t until_ns, uint64_t taken_ns)
{
    busy_add(&busy, &(struct busy_piece) {.from_ns = START + from_ns,
                                          .until_ns = START + until_ns,
                                          .given_ns = START + from_ns,
                                          .taken_ns = (int64_t) taken_ns});
}

static void publish(uint64_t since_ns, uint64_t now)
{
    progress_publish(&progress, &busy, START + since_ns, START + now);
}

static unsigned begins(void)
{
    unsigned found = 0;

    for (unsigned i = 0; i < PROGRESS_WORDS; i++)
        found += words[i] && progress_point(words[i], START + 100 * MS).begins;
    return found;
}

/* A part of a bin is the resolution. */
static void check_last(uint64_t at_ns, uint64_t done_ns, int sure)
{
    struct progress_point found = point(0, START + 100 * MS);
    int64_t off = (int64_t) (found.at_ns - START) - (int64_t) at_ns;

    CHECK("when, nearly", off < (int64_t) BUSY_PART_NS && off > -(int64_t) BUSY_PART_NS);
    CHECK("what it had, nearly",
          found.done * UNIT + MS / 4 > done_ns && found.done * UNIT < done_ns + MS / 4);
    CHECK_EQUAL("sure", found.sure, sure);
}

static void test_work_is_published_after_earlier_work_of_other_streams(void)
{
    begin_bins();
    finish(MS, MS + 200 * UNIT, 100 * UNIT);
    finish(5 * MS, 5 * MS + 200 * UNIT, 100 * UNIT);
    publish(0, 6 * MS);
    CHECK_EQUAL("work of another stream began before and has not ended", count(), 0);
    finish(0, 10 * MS, 8 * MS);
    publish(10 * MS, 10 * MS);
    CHECK_EQUAL("it was at work without a gap", begins(), 1);
    check_last(10 * MS, 8 * MS, 1);
    finish(12 * MS, 13 * MS, MS);
    publish(13 * MS, 13 * MS);
    CHECK_EQUAL("after a gap it begins again", begins(), 2);
    check_last(13 * MS, 9 * MS, 1);
}

static void test_long_piece_is_one_span(void)
{
    begin_bins();
    finish(0, 8 * MS, 4 * MS);
    publish(8 * MS, 8 * MS);
    CHECK_EQUAL("its begin and end: within it nothing is known", count(), 2);
    check_last(8 * MS, 4 * MS, 1);
    finish(8 * MS, 9 * MS, MS);
    finish(9 * MS, 10 * MS, MS / 2);
    publish(10 * MS, 10 * MS);
    CHECK_EQUAL("pieces that follow have their ends", count(), 4);
    check_last(10 * MS, 5 * MS + MS / 2, 1);
}

static void test_finished_work_is_held_back_for_some_time_only(void)
{
    uint64_t held = PROGRESS_HELD_NS;

    begin_bins();
    finish(MS, 2 * MS, MS);
    publish(0, held);
    CHECK_EQUAL("not yet", count(), 0);
    publish(0, held + 3 * MS);
    check_last(2 * MS, MS, 1);
    finish(0, held + 4 * MS, 6 * MS);
    publish(held + 4 * MS, held + 4 * MS);
    CHECK("what ran before that point is in the next one",
          point(0, START + 100 * MS).done * UNIT > 5 * MS + MS / 2);
}

static void test_union_of_streams_is_a_guess(void)
{
    begin_bins();
    finish(0, MS, MS);
    finish(0, MS, MS / 100);
    publish(MS, MS);
    check_last(MS, MS, 1);
    finish(MS, 2 * MS, MS / 2);
    finish(MS, 2 * MS, MS / 2);
    publish(2 * MS, 2 * MS);
    CHECK_EQUAL("several that may have run at the same time or not",
                point(0, START + 100 * MS).sure, 0);
}

/* Each publication but the last ends at the end of a bin, whose work must not be counted again. */
static void test_each_bin_is_published_once(void)
{
    uint64_t at_ns = 0;
    unsigned above = 0;

    begin_bins();
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t length = (5 + i * 89 % 200) * UNIT;

        finish(at_ns, at_ns + length, length * (20 + i * 37 % 80) / 100);
        at_ns += length + (i % 3 ? 0 : i * 131 % 400 * UNIT);
        publish(0, at_ns);
        above += progress.done_ns > (uint64_t) busy.total_ns;
    }
    publish(at_ns, at_ns);
    CHECK_EQUAL("publications of more than all work", above, 0);
    CHECK_EQUAL("all work in the end", progress.done_ns, busy.total_ns);
}

int main(void)
{
    test_work_has_begin_and_end();
    test_short_work_is_published_together();
    test_guess_is_published_separately();
    test_time_does_not_go_back();
    test_old_and_invalid_words_are_ignored();
    test_without_words_there_are_no_points();
    test_work_is_published_after_earlier_work_of_other_streams();
    test_long_piece_is_one_span();
    test_finished_work_is_held_back_for_some_time_only();
    test_union_of_streams_is_a_guess();
    test_each_bin_is_published_once();
    return check_end();
}
