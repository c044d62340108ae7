/* SPDX-License-Identifier: Apache-2.0 */
/* test_flightsample.c -- what a launch took by the marks around it, on a stream of a device of
 * which every moment is known. */
#include "check.h"
#include "cuda/flight.h"

#include <time.h>

#define US   INT64_C(1000)
#define TOOK (15 * US)

/* How long calls of the driver take, before whatever they do. */
#define SET_NS  (1 * US)
#define LOOK_NS (6 * US)
#define GIVE_NS (2 * US)

enum { EVENTS = 8 };

static uint64_t now = 1000000 * US; /* by every clock */
static uint64_t busy_until;         /* the stream, with what it was given */
static uint64_t passed[EVENTS];     /* when the device came to each event */
static int taken[EVENTS];
static unsigned sets_left; /* before the driver refuses one */

static const struct stream stream = STREAM_LEGACY(NULL);
static struct usage_compute shared;
static struct usage_work work;
static struct clock_view no_clock;
static struct costs costs;

__thread char flight_thread;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    (void) clock;
    *time = (struct timespec) {(time_t) (now / 1000000000), (long) (now % 1000000000)};
    return 0;
}

int flight_may_mark(const struct stream *of, int own)
{
    return of == &stream && own;
}

static uint64_t *event_of(const struct mark *mark)
{
    return (uint64_t *) (void *) mark->event;
}

int mark_take(struct mark *mark, const struct stream *of)
{
    (void) of;
    for (int i = 0; i < EVENTS; i++) {
        if (taken[i])
            continue;
        taken[i] = 1;
        mark->event = (CUevent) (void *) &passed[i];
        return 0;
    }
    return -1;
}

void mark_give_back(struct mark *mark)
{
    if (mark->event)
        taken[event_of(mark) - passed] = 0;
    mark->event = NULL;
}

int mark_set_own(const struct mark *mark, const struct stream *of)
{
    (void) of;
    if (!sets_left)
        return -1;
    sets_left--;
    now += SET_NS;
    *event_of(mark) = now > busy_until ? now : busy_until;
    return 0;
}

enum mark_state mark_look(const struct mark *mark)
{
    now += LOOK_NS;
    return *event_of(mark) <= now ? MARK_PASSED : MARK_AHEAD;
}

int64_t mark_between(const struct mark *begin, const struct mark *end)
{
    return (int64_t) (*event_of(end) - *event_of(begin));
}

uint64_t mark_when(const struct mark *mark, uint64_t latest)
{
    return *event_of(mark) < latest ? *event_of(mark) : latest;
}

/* Launch what takes TOOK once the driver has it; return what was learnt that it takes. */
static int64_t learnt_of_a_launch(void)
{
    static uint64_t function;
    uint64_t key = costs_key(0x1000 + ++function, 8);
    struct costs_quote quote = costs_ask(&costs, key, COSTS_GUESS_NS);
    struct governor governor = {.shared = &shared, .work = &work};
    struct flight_sample *sample;
    int failing;

    sets_left = EVENTS;
    sample = flight_begin_sample(&stream, &failing);
    CHECK("it is measured", sample && !failing);
    if (!sample)
        return -1;
    flight_describe(sample, &governor, &no_clock, key, quote.cost_ns, quote.stands_for);
    now += GIVE_NS;
    busy_until = (now > busy_until ? now : busy_until) + TOOK;
    flight_end_sample(sample, 1, &stream, now);
    now = busy_until + 1;
    CHECK("it has ended", flight_learn(&costs, now));
    CHECK_EQUAL("and is forgotten", flight_samples(), 0);
    return costs_ask(&costs, key, COSTS_GUESS_NS).cost_ns;
}

static void test_giving_a_launch_to_an_idle_stream_is_no_time_of_the_device(void)
{
    busy_until = 0;
    CHECK_EQUAL("it is what it took", learnt_of_a_launch(), TOOK);
}

static void test_nor_is_it_where_the_stream_has_just_become_idle(void)
{
    busy_until = now + SET_NS / 2;
    CHECK_EQUAL("it is what it took", learnt_of_a_launch(), TOOK);
    busy_until = now + SET_NS + LOOK_NS / 2;
    CHECK_EQUAL("even between two looks", learnt_of_a_launch(), TOOK);
}

static void test_behind_other_work_a_launch_begins_when_that_ends(void)
{
    busy_until = now + 50 * US;
    CHECK_EQUAL("it is what it took", learnt_of_a_launch(), TOOK);
}

static void test_where_a_mark_cannot_be_set_nothing_is_measured(void)
{
    for (sets_left = 0; sets_left < 2; sets_left++) {
        unsigned sets = sets_left;
        int failing;

        busy_until = 0;
        CHECK("no sample", !flight_begin_sample(&stream, &failing) && failing);
        CHECK_EQUAL("and none begun", flight_samples(), 0);
        for (int i = 0; i < EVENTS; i++)
            CHECK_EQUAL("its marks are given back", taken[i], 0);
        sets_left = sets;
    }
}

int main(void)
{
    test_giving_a_launch_to_an_idle_stream_is_no_time_of_the_device();
    test_nor_is_it_where_the_stream_has_just_become_idle();
    test_behind_other_work_a_launch_begins_when_that_ends();
    test_where_a_mark_cannot_be_set_nothing_is_measured();
    return check_end();
}
