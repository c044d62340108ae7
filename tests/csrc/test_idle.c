/* SPDX-License-Identifier: Apache-2.0 */
/* test_idle.c -- the words that publish times without work. */
#include "check.h"
#include "core/compiler.h"
#include "core/idle.h"

#include <pthread.h>

#define MS INT64_C(1000000)

static const uint64_t start = 1000 * (uint64_t) MS;

static uint64_t words[2];
static struct idle idle;

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

static void begin(void)
{
    words[0] = words[1] = 0;
    idle = (struct idle) {.words = words};
}

static uint64_t last_word(void)
{
    return words[idle.at];
}

static void test_idle_times_are_published_when_over(void)
{
    idle_work(&idle, start);
    CHECK_EQUAL("it had work", last_word(), 0);
    idle_rest(&idle, start + MS, start + 2 * MS);
    CHECK_EQUAL("an idle time seen once is not published", words[0] | words[1], 0);
    CHECK("but known", idle_rests(&idle));
    idle_work(&idle, start + 3 * MS);
    CHECK("from when it ended on",
          from_of(last_word()) >= start + MS && from_of(last_word()) < start + MS + WORK_UNIT_NS);
    CHECK("until work came",
          from_of(last_word()) + length_of(last_word()) <= start + 3 * MS &&
              from_of(last_word()) + length_of(last_word()) > start + 3 * MS - WORK_UNIT_NS);
    CHECK("it has work", !idle_rests(&idle));
    idle_rest(&idle, start + 4 * MS, start + 4 * MS);
    idle_work(&idle, start + 5 * MS);
    CHECK("the one before is kept", words[0] && words[1] && words[0] != words[1]);
}

static void test_idle_time_seen_twice_is_published_while_it_lasts(void)
{
    for (uint64_t i = 2; i < 5; i++)
        idle_rest(&idle, start + MS, start + i * MS);
    CHECK("it goes on", is_open(last_word()));
    CHECK("from the first time on", from_of(last_word()) < start + MS + WORK_UNIT_NS);
    CHECK_EQUAL("one word", words[idle.at ^ 1], 0);
    idle_work(&idle, start + 9 * MS);
    CHECK("then it is over", !is_open(words[0]) && !is_open(words[1]));
    CHECK_EQUAL("in the same word", words[idle.at ^ 1], 0);
    CHECK("all of it", length_of(last_word()) > 7 * MS);
}

static void test_end_of_long_idle_time_is_published(void)
{
    uint64_t end = start + 100 * 1000 * (uint64_t) MS;

    idle_rest(&idle, start, start);
    idle_work(&idle, end);
    CHECK("no mark of one that goes on", !is_open(last_word()));
    CHECK("as much as a word holds", length_of(last_word()) > 17 * 1000 * (uint64_t) MS);
    CHECK("up to its end", from_of(last_word()) + length_of(last_word()) > end - WORK_UNIT_NS);
}

static void test_short_idle_times_are_published(void)
{
    idle_rest(&idle, start, start);
    idle_work(&idle, start + 10);
    CHECK_EQUAL("nothing is said", words[0] | words[1], 0);
    idle.words = NULL;
    idle_rest(&idle, start, start);
    idle_work(&idle, start + MS);
    CHECK("nor by one that has no words", !idle_rests(&idle));
}

static int racing;

static void *keep_resting(void *nothing)
{
    while (__atomic_load_n(&racing, __ATOMIC_ACQUIRE))
        idle_rest(&idle, start, start + 2 * MS);
    return nothing;
}

/* One thread sees that there is no work while another begins some. */
static void test_new_work_ends_published_idle_time(void)
{
    int stale = 0;

    for (int i = 0; i < 300; i++) {
        pthread_t thread;

        racing = 1;
        pthread_create(&thread, NULL, keep_resting, NULL);
        for (int j = 0; j < 50; j++)
            idle_work(&idle, start + 3 * MS);
        __atomic_store_n(&racing, 0, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
        idle_work(&idle, start + 3 * MS);
        stale += is_open(words[0]) || is_open(words[1]);
    }
    CHECK_EQUAL("never", stale, 0);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_idle_times_are_published_when_over,
        test_idle_time_seen_twice_is_published_while_it_lasts,
        test_end_of_long_idle_time_is_published,
        test_short_idle_times_are_published,
        test_new_work_ends_published_idle_time,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
