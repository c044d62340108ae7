/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h -- cost model: the expected device time of launches, by shape and by function.
 *
 * A shape is a kernel with its grid, block and shared memory, a graph, or a kind and size of copy.
 * Its expected time is that of its measured launches. A shape that was never measured is expected
 * to take as long as other launches of its function, else a guess. No launch is delayed for a
 * measurement: a wrong expectation is corrected once the work was measured (governor.h).
 *
 * Pure, without locks and allocation, and racy by design: two threads may lose a measurement, and a
 * shape may evict another, which then counts as never measured.
 */
#ifndef PYVGPU_CORE_COSTS_H
#define PYVGPU_CORE_COSTS_H

#include "core/compiler.h"

#include <stdint.h>

#define COSTS_BITS          16 /* log2 of the number of shapes; an entry has 16 bytes */
#define COSTS_FUNCTION_BITS 12
#define COSTS_GUESS_NS      INT64_C(20000) /* for an unknown kernel */

enum { COSTS_MEAN = 16 };

enum cost_state {
    COST_GUESSED,  /* never measured */
    COST_SEEN,     /* measured beside other processes, whose time slices may be in it */
    COST_SURE,     /* likewise, but it is known how much of it was theirs */
    COST_DOUBTED,  /* measured alone, as it seemed; a few measurements can contradict it */
    COST_MEASURED, /* measured alone, without other processes */
};

struct cost {
    uint32_t tag;    /* distinguishes shapes with the same index; 0: free */
    uint8_t state;   /* enum cost_state */
    uint8_t pending; /* a launch of it is being measured */
    uint8_t count;   /* measurements without other processes in the mean, up to COSTS_MEAN */
    uint8_t mixed;   /* its launches take very different times: ns is their mean */
    uint32_t ns;
    uint32_t reserved;
};

/* Measurements of a shape beside other processes since it was last measured alone. */
struct cost_beside {
    uint32_t low_ns;        /* the shortest measurement: the shape takes no longer; */
    uint32_t before_ns;     /* the same of the EPOCH before; 0: there was none */
    uint32_t mean_ns;       /* mean time by the clock */
    uint32_t wait_ns;       /* mean excess of measurements over the shortest */
    uint8_t count;          /* number of measurements; */
    uint8_t alike;          /* those as long as the shortest: within one time slice */
    uint8_t seen;           /* like count, but not reset with an EPOCH; */
    uint8_t queued;         /* some of them were queued */
    uint8_t mean_of;        /* number of measurements in mean_ns; */
    uint8_t mean_is_queued; /* all of them were queued, else none */
    uint8_t own_of;         /* number of measurements for which it is known what others had; */
    uint8_t longer;         /* of those, measurements longer by more than a time slice; */
    int32_t own_ns;         /* the mean of the rest, */
    int32_t own_off_ns;     /* and of the deviation from that */
    int32_t mixed_ns;       /* mean with the shortest in place of all that are not longer */
    uint32_t mixed_of;
};

struct costs {
    struct cost shapes[1 << COSTS_BITS];
    struct cost_beside beside[1 << COSTS_BITS]; /* same index as shapes */
    struct cost functions[1 << COSTS_FUNCTION_BITS];
};

/* A shape: the handle of a function or other object with costs, and a number for the rest. */
struct costs_key {
    uint64_t shape;
    uint64_t function;
};

static inline uint64_t costs_hash(uint64_t value)
{
    value *= UINT64_C(0xd6e8feb86659fd93);
    value ^= value >> 32;
    return value * UINT64_C(0xd6e8feb86659fd93);
}

static inline struct costs_key costs_key(uint64_t handle, uint64_t detail)
{
    return (struct costs_key) {costs_hash(handle ^ detail * UINT64_C(0x9e3779b97f4a7c15)), handle};
}

static inline uint32_t costs_tag(uint64_t hash)
{
    return (uint32_t) hash | 1;
}

/* The entry of a known shape at its first index; NULL if it is not there. */
static inline struct cost *costs_find(struct costs *costs, const struct costs_key *key)
{
    struct cost *cost = &costs->shapes[key->shape >> (64 - COSTS_BITS)];

    return likely(__atomic_load_n(&cost->tag, __ATOMIC_RELAXED) == costs_tag(key->shape)) ? cost
                                                                                          : NULL;
}

/* Find or create the entry; a new one starts with the cost of its function, else *guess_ns*. Never
 * NULL. */
struct cost *costs_make(struct costs *costs, const struct costs_key *key, int64_t guess_ns);

/* Expected time of the next launch, ns. While the first launch of a shape has not been seen to
 * finish, each further one is expected to take several times as long, up to a limit. */
int64_t costs_expect(struct cost *cost);

/* Measurement of one launch. */
struct costs_sample {
    int64_t ns;       /* most device time, less the launch overhead if the device was idle before */
    int64_t most_ns;  /* the same with that overhead, */
    int64_t low_ns;   /* and least time, if no other process had work; */
    int64_t clock_ns; /* by the clock, which knows how much others had, not when; 0: unknown */
    int64_t own_ns;   /* the time that others did not have, at least 1; 0: unknown */
    int alone;        /* no other process had work */
    int queued;       /* its stream was at work before it: it began anywhere within a time slice */
    int crowded;      /* other streams had work: it is uncertain by the time that they took */
    int changed;      /* earlier measurements no longer apply */
};

void costs_learn(struct costs *costs, struct cost *cost, const struct costs_key *key,
                 const struct costs_sample *sample);

/* The first launch of a shape took at most this; how much of it others had is not known yet. */
void costs_note_first(struct costs *costs, struct cost *cost, const struct costs_key *key,
                      int64_t ns);

/* The first launch of a shape has been running for so long: expect other launches to take at least
 * as long. */
void costs_note_running(struct cost *cost, int64_t ns);

/* Other processes were found to use the device, perhaps for some time already: measurements taken
 * as alone may include their time slices. */
void costs_doubt(struct costs *costs);

/* Forget a handle that was destroyed: the driver may reuse it for another object. */
void costs_forget(struct costs *costs, const struct costs_key *key);

#endif
