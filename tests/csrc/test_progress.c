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

int main(void)
{
    test_work_has_begin_and_end();
    test_short_work_is_published_together();
    test_guess_is_published_separately();
    test_time_does_not_go_back();
    test_old_and_invalid_words_are_ignored();
    test_without_words_there_are_no_points();
    return check_end();
}
