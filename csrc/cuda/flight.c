/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c -- marks of periods and of single launches; see flight.h. */
#include "cuda/flight.h"
#include "cuda/capture.h"

#include <string.h>

enum {
    SAMPLES = 128,
    SAMPLES_MANY = 96,   /* then they do not wait for the clock to reach up to them */
    SEVERAL_LASTS = 16,  /* periods */
    TIMES_FAIL_FOR = 64, /* samples */
};

#define CLOCK_AWAITED_NS UINT64_C(30000000)
#define GIVING_MOST_NS   INT64_C(4000) /* behind that it may be running, as a large graph does */

/* How long a quiet moment is wished for, besides some times what was measured; and at least, after
 * all that is known has become certain, in case that more follows. */
#define WISH_NS       UINT64_C(200000000)
#define WISH_TIMES    8
#define WISH_AFTER_NS UINT64_C(1500000)

#define OVERLAP_WISH_NS UINT64_C(10000000) /* to learn how streams overlap */

struct flight_sample {
    enum { UNUSED, BEGUN, LAUNCHED, REFUSED } state; /* from BEGUN by the thread that launches */
    struct governor *governor;
    const struct clock_view *clock;
    uint64_t key;
    int64_t paid_ns;
    uint32_t stands_for;
    int passed;        /* its end was */
    int idle;          /* the stream had nothing to do then */
    uint64_t set_ns;   /* when its begin was marked */
    uint64_t given_ns; /* when the driver had the launch */
    struct mark begin, end;
};

__thread char flight_thread;

static struct flight_sample samples[SAMPLES];
/* The driver does not say when events were passed: so many samples go without. */
static unsigned times_fail;
static unsigned samples_begun;  /* not UNUSED */
static unsigned samples_passed; /* of those, that wait for the clock alone */

/* While a stream captures, others must not be touched that could have joined it, and the legacy
 * stream not at all. */
static int may_mark(const struct stream *stream, int own)
{
    if (!own)
        return context_owns_stream(stream->handle) && !captures_going_on();
    return flight_name(stream) != (uintptr_t) CU_STREAM_LEGACY || !captures_going_on();
}

/* A place that is not taken in this period, or else the last one. */
static struct flight_stream *place_for(struct flight *flight, uintptr_t name)
{
    struct flight_stream *place;
    unsigned way = 0;

    do {
        place = flight_place(flight, name, way);
    } while (place->name && place->period == flight->period && ++way < FLIGHT_WAYS);
    return place;
}

void flight_use(struct flight *flight, const struct stream *stream)
{
    uintptr_t name = flight_name(stream);
    struct flight_stream *place = place_for(flight, name);

    if (flight->several && !flight->used && may_mark(stream, 1))
        mark_set(&flight->begin, stream);
    flight->used++;
    __atomic_store_n(&place->name, 0, __ATOMIC_RELAXED);
    place->stream = *stream;
    __atomic_store_n(&place->period, flight->period, __ATOMIC_RELEASE);
    __atomic_store_n(&place->name, name, __ATOMIC_RELEASE);
}

void flight_end_period(struct flight *flight, uint64_t paid_ns, const struct stream *stream,
                       uint64_t now)
{
    struct flight_span *span = &flight->spans[(flight->first + flight->count) % FLIGHT_SPANS];
    uintptr_t own = flight_name(stream);
    unsigned from = flight->period * 37; /* not always the same, if there are too many */

    if (!flight->used || flight->count == FLIGHT_SPANS)
        return;
    *span = (struct flight_span) {
        .paid_ns = paid_ns, .streams = flight->used, .given_ns = now, .begin = flight->begin};
    for (unsigned i = 0; i < FLIGHT_STREAMS && span->end_count < FLIGHT_ENDS; i++) {
        const struct flight_stream *used = &flight->streams[(from + i) % FLIGHT_STREAMS];

        if (used->name && used->period == flight->period &&
            may_mark(&used->stream, used->name == own) &&
            mark_set(&span->ends[span->end_count], &used->stream) == 0)
            span->end_count++;
    }
    if (flight->used > 1)
        flight->several = SEVERAL_LASTS;
    else if (flight->several)
        flight->several--;
    flight->count++;
    flight->used = 0;
    flight->begin = (struct mark) {NULL};
    __atomic_store_n(&flight->period, flight->period + 1, __ATOMIC_RELEASE);
}

static int is_ahead(const struct flight_span *span)
{
    for (unsigned i = 0; i < span->end_count; i++)
        if (mark_look(&span->ends[i]) == MARK_AHEAD)
            return 1;
    return 0;
}

static uint64_t scaled(uint64_t ns, uint32_t rate)
{
    return ns / CLOCK_WHOLE * rate + ns % CLOCK_WHOLE * rate / CLOCK_WHOLE;
}

static uint64_t end_of(const struct flight_span *span, uint64_t now)
{
    uint64_t end = 0;

    for (unsigned i = 0; i < span->end_count; i++) {
        uint64_t passed = mark_when(&span->ends[i], now);

        end = passed > end ? passed : end;
    }
    return end;
}

/* Several streams: what the launches took together may be less than each by itself. */
static void note_overlap(const struct flight_span *span, struct governor *governor,
                         const struct clock_view *clock, uint64_t paid_ns, uint64_t begin,
                         uint64_t end, uint64_t now)
{
    if (span->streams == 1)
        governor_overlap(governor, paid_ns, paid_ns, 1);
    else if (end > begin)
        governor_overlap(governor, paid_ns, scaled(end - begin, clock_rate(clock, begin, end, now)),
                         clock_alone(clock, begin, end, now));
    if (governor_wants_quiet(governor) && clock_sharers(clock) > 1)
        governor_wish(governor, now + WISH_NS, OVERLAP_WISH_NS, clock->slot);
}

/* What a period took: if all of it was given to the device before that had done what was before,
 * it was at it from then on. */
static void account(struct flight *flight, const struct flight_span *span,
                    struct governor *governor, struct costs *costs, const struct clock_view *clock,
                    uint64_t now)
{
    uint64_t paid_ns = span->paid_ns - flight->passed_paid_ns;
    uint64_t before = flight->busy_until_ns;
    uint64_t end = end_of(span, now);
    int follows = before && span->given_ns <= before && end > before;
    uint64_t begin = before;

    if (!follows && span->begin.event)
        begin = mark_when(&span->begin, now);
    begin = begin > before ? begin : before;
    if (governor->overlap || (span->streams > 1 && (follows || span->begin.event)))
        note_overlap(span, governor, clock, paid_ns, begin, end, now);
    if (!follows)
        governor_audit_anew(governor);
    else if (governor_audit(governor, paid_ns,
                            scaled(end - before, clock_rate(clock, before, end, now)),
                            clock_alone(clock, before, end, now)))
        costs_distrust(costs);
    flight->busy_until_ns = end;
}

static void give_back(struct flight_span *span)
{
    mark_give_back(&span->begin);
    for (unsigned i = 0; i < span->end_count; i++)
        mark_give_back(&span->ends[i]);
}

int flight_look(struct flight *flight, struct governor *governor, struct costs *costs,
                const struct clock_view *clock, uint64_t now)
{
    int progress = 0;

    while (flight->count && !is_ahead(&flight->spans[flight->first])) {
        struct flight_span *span = &flight->spans[flight->first];

        account(flight, span, governor, costs, clock, now);
        flight->passed_paid_ns = span->paid_ns;
        governor_finish(governor, span->paid_ns, now);
        give_back(span);
        flight->first = (flight->first + 1) % FLIGHT_SPANS;
        flight->count--;
        progress = 1;
    }
    return progress;
}

void flight_forget_stream(struct flight *flight, CUstream stream)
{
    for (unsigned way = 0; way < FLIGHT_WAYS; way++) {
        struct flight_stream *place = flight_place(flight, (uintptr_t) stream, way);

        if (place->name == (uintptr_t) stream)
            __atomic_store_n(&place->name, 0, __ATOMIC_RELEASE);
    }
}

void flight_forget(struct flight *flight)
{
    for (unsigned i = 0; i < FLIGHT_STREAMS; i++)
        __atomic_store_n(&flight->streams[i].name, 0, __ATOMIC_RELEASE);
}

/* --- single launches -------------------------------------------------------------------------- */

static struct flight_sample *unused_sample(void)
{
    for (unsigned i = 0; i < SAMPLES; i++)
        if (__atomic_load_n(&samples[i].state, __ATOMIC_ACQUIRE) == UNUSED)
            return &samples[i];
    return NULL;
}

struct flight_sample *flight_begin_sample(const struct stream *stream, int *failing)
{
    struct flight_sample *sample = may_mark(stream, 1) ? unused_sample() : NULL;

    *failing = 0;
    if (!sample)
        return NULL;
    sample->idle = STREAM_CALL(stream, cuStreamQuery)(stream->handle) == CUDA_SUCCESS;
    if (!times_fail && mark_take(&sample->begin, stream) == 0 &&
        mark_take(&sample->end, stream) == 0 && mark_set_own(&sample->begin, stream) == 0) {
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
                     uint32_t stands_for, uint64_t now)
{
    sample->governor = governor;
    sample->clock = clock;
    sample->key = key;
    sample->paid_ns = paid_ns;
    sample->stands_for = stands_for;
    sample->set_ns = now;
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
    uint64_t end;

    if (!sample->clock->valid || waiting > SAMPLES_MANY || sample->stands_for & COSTS_GUESSED)
        return 0;
    end = mark_when(&sample->end, now);
    return !clock_covers(sample->clock, end) && now - end < CLOCK_AWAITED_NS;
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
    };
    int certain;

    if (measured.elapsed_ns >= 0) {
        uint64_t begin = mark_when(&sample->begin, now);
        uint64_t end = mark_when(&sample->end, now);

        measured.rate = clock_rate(clock, begin, end, now);
        measured.sharers = clock_sharers(clock);
        measured.alone = clock_alone(clock, begin, end, now);
    }
    if (sample->stands_for & COSTS_GUESSED)
        governor_unknown(sample->governor, -1);
    certain = costs_are_certain(costs, sample->key);
    governor_correct(sample->governor, costs_learn(costs, sample->key, &measured));
    if (!certain && costs_are_certain(costs, sample->key))
        governor_overlap_anew(sample->governor);
    if (measured.elapsed_ns < 0 || measured.sharers == 1 || !costs_want_quiet(costs, sample->key))
        return 0;
    governor_wish(sample->governor, now + WISH_NS + WISH_TIMES * (uint64_t) measured.elapsed_ns,
                  (uint64_t) measured.elapsed_ns, clock->slot);
    return 1;
}

/* Nothing of what is known to be under way is uncertain. */
static int is_content(struct costs *costs, const struct governor *governor)
{
    if (governor_wants_quiet(governor))
        return 0;
    for (unsigned i = 0; i < SAMPLES; i++)
        if (samples[i].state != UNUSED && samples[i].governor == governor &&
            costs_want_quiet(costs, samples[i].key))
            return 0;
    return 1;
}

static int is_over(struct flight_sample *sample, unsigned waiting, uint64_t now)
{
    switch (__atomic_load_n(&sample->state, __ATOMIC_ACQUIRE)) {
    case LAUNCHED:
        if (!sample->passed && mark_look(&sample->end) == MARK_AHEAD)
            return 0;
        samples_passed += !sample->passed;
        sample->passed = 1;
        return !awaits_clock(sample, waiting, now);
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
}
