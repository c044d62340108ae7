/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c -- marks of periods; see flight.h. */
#include "cuda/flight.h"
#include "cuda/capture.h"

enum { SEVERAL_LASTS = 16 }; /* periods */

#define OVERLAP_WISH_NS UINT64_C(10000000) /* to learn how streams overlap */

__thread char flight_thread;

int flight_may_mark(const struct stream *stream, int own)
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

    if (!flight->used && flight_may_mark(stream, 1)) {
        flight->begin_ns = clock_now_ns(CLOCK_MONOTONIC);
        mark_set(&flight->begin, stream);
    }
    if (flight->last && name != flight->last)
        flight->several = SEVERAL_LASTS;
    flight->last = name;
    place->turn = flight->used++;
    __atomic_store_n(&place->name, 0, __ATOMIC_RELAXED);
    place->stream = *stream;
    __atomic_store_n(&place->period, flight->period, __ATOMIC_RELEASE);
    __atomic_store_n(&place->name, name, __ATOMIC_RELEASE);
}

/* Mark the streams that were used last, or others that were used before. */
static void mark_ends(struct flight *flight, struct flight_span *span, uintptr_t own, int last)
{
    unsigned from = flight->period * 37; /* not always the same, if there are too many */

    for (unsigned i = 0; i < FLIGHT_STREAMS && span->end_count < FLIGHT_ENDS; i++) {
        const struct flight_stream *used = &flight->streams[(from + i) % FLIGHT_STREAMS];

        if (used->name && used->period == flight->period &&
            (used->turn + FLIGHT_LAST >= flight->used) == last &&
            flight_may_mark(&used->stream, used->name == own) &&
            mark_set(&span->ends[span->end_count], &used->stream) == 0)
            span->end_count++;
    }
}

void flight_end_period(struct flight *flight, struct governor *governor,
                       const struct stream *stream)
{
    struct flight_span *span = &flight->spans[(flight->first + flight->count) % FLIGHT_SPANS];
    uintptr_t own = flight_name(stream);

    if (!flight->used || flight->count == FLIGHT_SPANS)
        return;
    *span = (struct flight_span) {.paid_ns = governor_paid(governor),
                                  .several = flight->several != 0,
                                  .begin = flight->begin,
                                  .begin_ns = flight->begin_ns};
    mark_ends(flight, span, own, 1);
    mark_ends(flight, span, own, 0);
    span->given_ns =
        clock_now_ns(CLOCK_MONOTONIC); /* not earlier: they are passed at once if idle */
    flight->several -= flight->several > 0;
    governor->several = flight->several != 0;
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

static uint64_t end_of(const struct flight_span *span, uint64_t now)
{
    uint64_t end = 0;

    for (unsigned i = 0; i < span->end_count; i++) {
        uint64_t passed = mark_when(&span->ends[i], now);

        end = passed > end ? passed : end;
    }
    return end;
}

/* If all of it was given to the device before that had done what was before, it went on with it at
 * once. Else it is known where its first launch was marked. */
static void note_begin(struct governor_period *period, const struct flight *flight,
                       const struct flight_span *span, uint64_t now)
{
    uint64_t before = flight->busy_until_ns;

    if (span->given_ns <= before) {
        period->from_ns = before;
    } else if (span->begin.event) {
        uint64_t begin = mark_when(&span->begin, now);

        period->from_ns = begin > before ? begin : before;
        period->giving_ns = span->given_ns - span->begin_ns;
    }
}

/* Tell the governor what a period took. */
static void account(struct flight *flight, const struct flight_span *span,
                    struct governor *governor, struct costs *costs, const struct clock_view *clock,
                    uint64_t now)
{
    struct governor_period period = {.paid_ns = span->paid_ns - flight->passed_paid_ns,
                                     .given_ns = span->given_ns,
                                     .end_ns = end_of(span, now),
                                     .several = span->several};
    uint64_t begin;

    note_begin(&period, flight, span, now);
    begin = period.from_ns ? period.from_ns : period.given_ns;
    period.rate = clock_rate(clock, begin, period.end_ns, now);
    period.alone = clock_alone(clock, begin, period.end_ns, now);
    period.beside = clock_sharers(clock) > 1;
    if (governor_period(governor, &period))
        costs_distrust(costs);
    if (governor_wants_quiet(governor) && clock_sharers(clock) > 1)
        governor_wish(governor, now + FLIGHT_WISH_NS, OVERLAP_WISH_NS, clock->slot);
    if (flight->busy_until_ns < period.end_ns)
        flight->busy_until_ns = period.end_ns;
}

/* In several streams it may wait for something that is no work of the device. */
static void note_overdue(const struct flight *flight, struct governor *governor,
                         const struct clock_view *clock, uint64_t now)
{
    const struct flight_span *span = &flight->spans[flight->first];
    uint64_t begin =
        span->given_ns > flight->busy_until_ns ? span->given_ns : flight->busy_until_ns;

    if (!flight->count || flight->several)
        governor_overdue(governor, 0, 0);
    else if (now > begin && clock_alone(clock, begin, now, now))
        governor_overdue(governor, (int64_t) (span->paid_ns - flight->passed_paid_ns),
                         (int64_t) (now - begin));
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
        governor_overdue(governor, 0, 0);
        give_back(span);
        flight->first = (flight->first + 1) % FLIGHT_SPANS;
        flight->count--;
        progress = 1;
    }
    note_overdue(flight, governor, clock, now);
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
