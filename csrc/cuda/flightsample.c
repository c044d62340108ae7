/* SPDX-License-Identifier: Apache-2.0 */
/* flightsample.c -- marks of single launches; see flight.h. */
#include "cuda/flight.h"

#include <string.h>

enum {
    SAMPLES = 128,
    SAMPLES_MANY = 96,   /* then they do not wait for the clock to reach up to them */
    TIMES_FAIL_FOR = 64, /* samples */
    WISH_TRIES = 16,     /* measured in a quiet moment, for the one that it is wished for to come */
};

#define CLOCK_AWAITED_NS UINT64_C(30000000)
#define QUEUED_MORE_NS   INT64_C(4000) /* as exact as times are */
#define GIVING_MOST_NS   INT64_C(4000) /* behind that it may be running, as a large graph does */

/* For how long a quiet moment is wished for, besides FLIGHT_WISH_NS: some times what was measured;
 * and at least, after all that is known has become certain, in case that more follows. */
#define WISH_TIMES    8
#define WISH_AFTER_NS UINT64_C(1500000)

struct flight_sample {
    enum { UNUSED, BEGUN, LAUNCHED, REFUSED } state; /* from BEGUN by the thread that launches */
    struct governor *governor;
    const struct clock_view *clock;
    uint64_t key;
    int64_t paid_ns;
    uint32_t stands_for;
    int passed;        /* its end was */
    int idle;          /* the stream had nothing to do then */
    uintptr_t stream;  /* its name */
    uint64_t end_ns;   /* when it was passed */
    uint64_t after_ns; /* when the last one in another stream was that ended before it */
    uint64_t set_ns;   /* when its begin was marked */
    uint64_t given_ns; /* when the driver had the launch */
    struct mark begin, end;
};

static struct flight_sample samples[SAMPLES];
/* The driver does not say when events were passed: so many samples go without. */
static unsigned times_fail;
static unsigned samples_begun;  /* not UNUSED */
static unsigned samples_passed; /* of those, that wait for the clock alone */
static uint64_t wished_key;     /* a quiet moment was last wished for to measure it */
static unsigned wished_tries;   /* measurements alone since then, all of others */

static struct flight_sample *unused_sample(void)
{
    for (unsigned i = 0; i < SAMPLES; i++)
        if (__atomic_load_n(&samples[i].state, __ATOMIC_ACQUIRE) == UNUSED)
            return &samples[i];
    return NULL;
}

static int set_begin_now(struct flight_sample *sample, const struct stream *stream)
{
    int result = mark_set_own(&sample->begin, stream);

    sample->set_ns = clock_now_ns(CLOCK_MONOTONIC);
    return result;
}

/* Where nothing is before the launch, the mark is passed already, and nobody knows since when. Set
 * anew it is passed as soon as it is set, see elapsed_of(). */
static int set_begin(struct flight_sample *sample, const struct stream *stream)
{
    int result = set_begin_now(sample, stream);

    sample->idle = result == 0 && mark_look(&sample->begin) == MARK_PASSED;
    return sample->idle ? set_begin_now(sample, stream) : result;
}

struct flight_sample *flight_begin_sample(const struct stream *stream, int *failing)
{
    struct flight_sample *sample = flight_may_mark(stream, 1) ? unused_sample() : NULL;

    *failing = 0;
    if (!sample)
        return NULL;
    if (!times_fail && mark_take(&sample->begin, stream) == 0 &&
        mark_take(&sample->end, stream) == 0 && set_begin(sample, stream) == 0) {
        sample->stream = flight_name(stream);
        sample->after_ns = 0;
        sample->state = BEGUN;
        samples_begun++;
        return sample;
    }
    mark_give_back(&sample->begin);
    mark_give_back(&sample->end);
    times_fail -= times_fail > 0;
    *failing = 1;
    return NULL;
}

void flight_describe(struct flight_sample *sample, struct governor *governor,
                     const struct clock_view *clock, uint64_t key, int64_t paid_ns,
                     uint32_t stands_for)
{
    sample->governor = governor;
    sample->clock = clock;
    sample->key = key;
    sample->paid_ns = paid_ns;
    sample->stands_for = stands_for;
    if (stands_for & COSTS_GUESSED)
        governor_unknown(governor, 1);
}

void flight_end_sample(struct flight_sample *sample, int launched, const struct stream *stream,
                       uint64_t now)
{
    int marked = launched && mark_set_own(&sample->end, stream) == 0;

    sample->given_ns = now;
    __atomic_store_n(&sample->state, marked ? LAUNCHED : REFUSED, __ATOMIC_RELEASE);
}

/* The clock of the arbiter is some milliseconds behind; what it says of later is foreseen. */
static int awaits_clock(const struct flight_sample *sample, unsigned waiting, uint64_t now)
{
    if (!sample->clock->valid || waiting > SAMPLES_MANY || sample->stands_for & COSTS_GUESSED)
        return 0;
    return !clock_covers(sample->clock, sample->end_ns) && now < sample->end_ns + CLOCK_AWAITED_NS;
}

/* An idle stream passes the first mark before it is given the launch, which is no time of the
 * device. */
static int64_t elapsed_of(const struct flight_sample *sample)
{
    int64_t giving = (int64_t) (sample->given_ns - sample->set_ns);
    int64_t elapsed;

    if (sample->state != LAUNCHED)
        return -1;
    elapsed = mark_between(&sample->begin, &sample->end);
    if (elapsed < 0 && elapsed != MARK_TIME_LOST)
        times_fail = TIMES_FAIL_FOR;
    if (!sample->idle || elapsed < 0)
        return elapsed;
    giving = giving < GIVING_MOST_NS ? giving : GIVING_MOST_NS;
    return giving < elapsed / 2 ? elapsed - giving : elapsed / 2;
}

/* Whether a quiet moment is wished for to learn more. */
static int learn(const struct flight_sample *sample, struct costs *costs, uint64_t now)
{
    const struct clock_view *clock = sample->clock;
    struct costs_sample measured = {
        .paid_ns = sample->paid_ns,
        .elapsed_ns = elapsed_of(sample),
        .stands_for = sample->stands_for,
        .crowded = sample->governor->several,
    };
    struct costs_known before = costs_know(costs, sample->key);
    struct costs_known known;
    int64_t short_ns;

    if (measured.elapsed_ns >= 0) {
        uint64_t begin = mark_when(&sample->begin, now);
        uint64_t end = sample->end_ns;

        if (sample->after_ns > begin)
            measured.queued_ns = (int64_t) (sample->after_ns - begin) + QUEUED_MORE_NS;
        measured.rate = clock_rate(clock, begin, end, now);
        measured.sharers = clock_sharers(clock);
        measured.alone = clock_alone(clock, begin, end, now);
    }
    if (sample->stands_for & COSTS_GUESSED)
        governor_unknown(sample->governor, -1);
    short_ns = costs_learn(costs, sample->key, &measured);
    if (sample->set_ns > sample->governor->settled_ns)
        governor_correct(sample->governor, short_ns, sample->set_ns);
    known = costs_know(costs, sample->key);
    if (costs_know_better(&before, &known)) {
        governor_overlap_anew(sample->governor);
        governor_forgive(sample->governor, costs_settle(costs, sample->key));
    }
    wished_tries += (unsigned) measured.alone;
    if (measured.elapsed_ns < 0 || measured.sharers == 1 || !costs_want_quiet(costs, sample->key))
        return 0;
    governor_wish(sample->governor,
                  now + FLIGHT_WISH_NS + WISH_TIMES * (uint64_t) measured.elapsed_ns,
                  (uint64_t) measured.elapsed_ns, clock->slot);
    wished_key = sample->key;
    wished_tries = 0;
    return 1;
}

/* Nothing of what is known to be under way is uncertain, nor what may still come. */
static int is_content(struct costs *costs, const struct governor *governor)
{
    if (governor_wants_quiet(governor) ||
        (wished_tries < WISH_TRIES && costs_want_quiet(costs, wished_key)))
        return 0;
    for (unsigned i = 0; i < SAMPLES; i++)
        if (samples[i].state != UNUSED && samples[i].governor == governor &&
            costs_want_quiet(costs, samples[i].key))
            return 0;
    return 1;
}

/* Those that go on behind *ended* may have waited for it. */
static void note_queued(const struct flight_sample *ended)
{
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct flight_sample *sample = &samples[i];

        if (__atomic_load_n(&sample->state, __ATOMIC_ACQUIRE) == LAUNCHED &&
            sample->governor == ended->governor && sample->stream != ended->stream &&
            (!sample->passed || sample->end_ns > ended->end_ns) && sample->after_ns < ended->end_ns)
            sample->after_ns = ended->end_ns;
    }
}

/* See which have ended, and then in which order. */
static void see_ends(uint64_t now)
{
    struct flight_sample *ended[SAMPLES];
    unsigned count = 0;

    for (unsigned i = 0; i < SAMPLES; i++) {
        struct flight_sample *sample = &samples[i];

        if (__atomic_load_n(&sample->state, __ATOMIC_ACQUIRE) != LAUNCHED || sample->passed ||
            mark_look(&sample->end) == MARK_AHEAD)
            continue;
        sample->passed = 1;
        sample->end_ns = mark_when(&sample->end, now);
        if (clock_sharers(sample->clock) > 1)
            governor_worked(sample->governor, sample->set_ns, sample->end_ns);
        ended[count++] = sample;
    }
    samples_passed += count;
    for (unsigned i = 0; i < count; i++)
        note_queued(ended[i]);
}

static int is_over(struct flight_sample *sample, unsigned waiting, uint64_t now)
{
    switch (__atomic_load_n(&sample->state, __ATOMIC_ACQUIRE)) {
    case LAUNCHED:
        return sample->passed && !awaits_clock(sample, waiting, now);
    case REFUSED:
        return 1;
    case UNUSED:
    case BEGUN:
        return 0;
    }
    return 0;
}

int flight_learn(struct costs *costs, uint64_t now)
{
    struct governor *governor = NULL;
    const struct clock_view *clock = NULL;
    unsigned waiting = 0;
    int learnt = 0;
    int wishing = 0;

    for (unsigned i = 0; i < SAMPLES; i++)
        waiting += samples[i].state == LAUNCHED;
    see_ends(now);
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct flight_sample *sample = &samples[i];

        if (!is_over(sample, waiting, now))
            continue;
        wishing |= learn(sample, costs, now);
        governor = sample->governor;
        clock = sample->clock;
        learnt |= sample->state == LAUNCHED;
        mark_give_back(&sample->begin);
        mark_give_back(&sample->end);
        samples_begun--;
        samples_passed -= (unsigned) sample->passed;
        sample->passed = 0;
        __atomic_store_n(&sample->state, UNUSED, __ATOMIC_RELEASE);
    }
    if (governor && governor->wishes && !wishing && is_content(costs, governor))
        governor_wish_no_more(governor, now + WISH_AFTER_NS, clock->slot);
    return learnt;
}

unsigned flight_samples(void)
{
    return __atomic_load_n(&samples_begun, __ATOMIC_RELAXED);
}

unsigned flight_samples_ahead(void)
{
    return flight_samples() - __atomic_load_n(&samples_passed, __ATOMIC_RELAXED);
}

void flight_after_fork(void)
{
    memset(samples, 0, sizeof(samples));
    samples_begun = samples_passed = 0;
    times_fail = 0;
    wished_key = wished_tries = 0;
}
