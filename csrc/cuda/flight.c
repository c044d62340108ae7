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

    if (flight->several && !flight->used && flight_may_mark(stream, 1))
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
            flight_may_mark(&used->stream, used->name == own) &&
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
        governor_wish(governor, now + FLIGHT_WISH_NS, OVERLAP_WISH_NS, clock->slot);
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
