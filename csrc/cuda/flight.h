/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h -- what this process has given to one device and not seen finished.
 *
 * Time is cut into periods, each from one purchase of credit to the next. When one ends, the
 * streams that were used in it are marked: once the device has passed those marks, everything that
 * was paid until then is done. Some launches are marked before and behind, to learn what they take.
 *
 * Everything but flight_knows() and flight_end_sample() is for who has the marks (mark.h).
 */
#ifndef PYVGPU_CUDA_FLIGHT_H
#define PYVGPU_CUDA_FLIGHT_H

#include "clock.h"
#include "costs.h"
#include "cuda/context.h"
#include "cuda/mark.h"
#include "governor.h"

enum {
    FLIGHT_STREAMS_SHIFT = 8,
    FLIGHT_STREAMS = 1 << FLIGHT_STREAMS_SHIFT, /* told apart in one period */
    FLIGHT_WAYS = 4,                            /* places that a stream may have */
    FLIGHT_SPANS = 32,                          /* periods with marks ahead */
    FLIGHT_ENDS = 64,                           /* streams marked in one, */
    FLIGHT_LAST = 48,                           /* of them, those that were used last */
};

/* How long a quiet moment is wished for. */
#define FLIGHT_WISH_NS UINT64_C(200000000)

struct flight_stream {
    uintptr_t name;  /* see flight_name(); 0: none */
    uint32_t period; /* in which it was used last */
    uint32_t turn;   /* streams that were used before it then */
    struct stream stream;
};

/* A period that is over. */
struct flight_span {
    uint64_t paid_ns;   /* governor_paid() at its end */
    int several;        /* streams were used, in it or shortly before */
    unsigned end_count; /* that could be marked */
    uint64_t given_ns;  /* when it ended, and all of it was in the driver's hands */
    struct mark begin;  /* before the first launch; not always set */
    uint64_t begin_ns;  /* when that was set */
    struct mark ends[FLIGHT_ENDS];
};

struct flight {
    uint32_t period;
    unsigned used;     /* streams in this period */
    unsigned several;  /* periods for which several streams are expected, since there were such */
    uintptr_t last;    /* the stream that was noted last */
    struct mark begin; /* of this period */
    uint64_t begin_ns;
    struct flight_stream streams[FLIGHT_STREAMS];
    unsigned first, count; /* of the spans, which are a ring */
    struct flight_span spans[FLIGHT_SPANS];
    uint64_t passed_paid_ns; /* of the newest span that is done */
    uint64_t busy_until_ns;  /* when that was; 0: not known */
};

struct flight_sample;

extern __thread char flight_thread;

/* What tells streams apart: the default stream of a thread goes by a name of the thread. */
static inline uintptr_t flight_name(const struct stream *stream)
{
    if (likely(context_owns_stream(stream->handle)))
        return (uintptr_t) stream->handle;
    return stream->handle == CU_STREAM_PER_THREAD || (stream->per_thread && !stream->handle)
               ? (uintptr_t) &flight_thread
               : (uintptr_t) CU_STREAM_LEGACY;
}

/* One of the places that a stream may have. */
static inline struct flight_stream *flight_place(struct flight *flight, uintptr_t name,
                                                 unsigned way)
{
    return &flight->streams[(name * UINT64_C(0x9e3779b97f4a7c15) >> (64 - FLIGHT_STREAMS_SHIFT)) ^
                            way];
}

static inline int flight_holds(const struct flight *flight, const struct flight_stream *place,
                               uintptr_t name)
{
    return __atomic_load_n(&place->name, __ATOMIC_RELAXED) == name &&
           __atomic_load_n(&place->period, __ATOMIC_RELAXED) ==
               __atomic_load_n(&flight->period, __ATOMIC_RELAXED);
}

/* Whether *stream* is noted for this period. */
static inline int flight_knows(struct flight *flight, const struct stream *stream)
{
    uintptr_t name = flight_name(stream);

    if (likely(flight_holds(flight, flight_place(flight, name, 0), name)))
        return 1;
    for (unsigned way = 1; way < FLIGHT_WAYS; way++)
        if (flight_holds(flight, flight_place(flight, name, way), name))
            return 1;
    return 0;
}

/* Whether marks may be set in *stream*, which is the caller's *own*, or not. While one captures,
 * others must not be touched that could have joined it, and the legacy stream not at all. */
int flight_may_mark(const struct stream *stream, int own);

/* The calling thread is about to put work into *stream*. */
void flight_use(struct flight *flight, const struct stream *stream);

/* End the period on behalf of who uses *stream*. */
void flight_end_period(struct flight *flight, struct governor *governor,
                       const struct stream *stream);

/* See which marks were passed, and tell the governor: whether something was. */
int flight_look(struct flight *flight, struct governor *governor, struct costs *costs,
                const struct clock_view *clock, uint64_t now);

/* Forget all marks: of a context that ends, or of none that is known. */
void flight_forget(struct flight *flight);

/* Forget *stream*, which ends. */
void flight_forget_stream(struct flight *flight, CUstream stream);

/* Measure a launch into *stream*, as the last thing before it: mark it. NULL if that cannot be
 * done, and *failing* says whether events are to blame. */
struct flight_sample *flight_begin_sample(const struct stream *stream, int *failing);

/* The launch that *sample* is for was given to the driver, or refused by it. */
void flight_end_sample(struct flight_sample *sample, int launched, const struct stream *stream,
                       uint64_t now);

/* Samples that were begun and that nobody has learnt from; those of which the device may not have
 * passed the end. */
unsigned flight_samples(void);
unsigned flight_samples_ahead(void);

/* What a sample is of. */
void flight_describe(struct flight_sample *sample, struct governor *governor,
                     const struct clock_view *clock, uint64_t key, int64_t paid_ns,
                     uint32_t stands_for);

/* Learn from those whose marks were passed: whether any was. */
int flight_learn(struct costs *costs, uint64_t now);

void flight_after_fork(void);

#endif
