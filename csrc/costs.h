/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h -- how long launches are expected to keep the device: by shape, and by function.
 *
 * A shape is a kernel with its grid, block and shared memory, a graph, or a kind and size of copy.
 * What is expected of it is what its measured launches took. Of a shape that was never measured its
 * function's other launches are expected, else a guess. That delays no launch: a wrong expectation
 * is corrected once the work was measured (governor.h).
 *
 * Pure, without locks and allocation, and racy by design: two threads may lose a measurement, and a
 * shape may push out another, which is then a new one again.
 */
#ifndef PYVGPU_COSTS_H
#define PYVGPU_COSTS_H

#include "compiler.h"

#include <stdint.h>

#define COSTS_BITS          16 /* of shapes; an entry has 16 bytes */
#define COSTS_FUNCTION_BITS 12
#define COSTS_GUESS_NS      INT64_C(20000) /* for a kernel of which nothing is known */

enum { COSTS_MEAN = 16 };

enum cost_state {
    COST_GUESSED, /* never measured */
    COST_SEEN,    /* measured beside other processes, whose turns may be in it */
    COST_SURE,    /* likewise, and it is known how much of it was theirs */
    COST_DOUBTED, /* measured without them, as it seemed, and some measurements may contradict it */
    COST_MEASURED, /* measured without them */
};

struct cost {
    uint32_t tag;    /* tells shapes with the same place apart; 0: free */
    uint8_t state;   /* enum cost_state */
    uint8_t pending; /* a launch of it is being measured */
    uint8_t count;   /* of measurements alone in the mean, up to COSTS_MEAN */
    uint8_t unused;
    uint32_t ns;
    uint32_t reserved;
};

/* What was measured of a shape beside other processes since it was last measured alone. */
struct cost_beside {
    uint32_t low_ns;        /* the shortest: it took no more; */
    uint32_t before_ns;     /* the same of the measurements before these; 0: there were none */
    uint32_t mean_ns;       /* by what the clock says */
    uint32_t wait_ns;       /* by which measurements were longer than the shortest, on average */
    uint8_t count;          /* of measurements; */
    uint8_t alike;          /* of them, which took as long as the shortest: within one turn */
    uint8_t seen;           /* as count, but not begun again; */
    uint8_t queued;         /* some of them were */
    uint8_t mean_of;        /* so many measurements; */
    uint8_t mean_is_queued; /* of which all were queued, or none */
    uint8_t own_of;         /* so many measurements of which is known what others had; */
    uint8_t unused;
    int32_t own_ns;     /* the rest, on average, */
    int32_t own_off_ns; /* and how far off that they were, likewise */
};

struct costs {
    struct cost shapes[1 << COSTS_BITS];
    struct cost_beside beside[1 << COSTS_BITS]; /* of the same places */
    struct cost functions[1 << COSTS_FUNCTION_BITS];
};

/* A shape: of a function, or whatever has costs of its own (its handle), and a number for the rest.
 */
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

/* The entry of a shape that was seen before, where it usually is; NULL if it is not there. */
static inline struct cost *costs_find(struct costs *costs, const struct costs_key *key)
{
    struct cost *cost = &costs->shapes[key->shape >> (64 - COSTS_BITS)];

    return likely(__atomic_load_n(&cost->tag, __ATOMIC_RELAXED) == costs_tag(key->shape)) ? cost
                                                                                          : NULL;
}

/* The same, and if it is new it gets an entry, with what is expected of its function or
 * *guess_ns*. Never NULL. */
struct cost *costs_make(struct costs *costs, const struct costs_key *key, int64_t guess_ns);

/* What the next launch is expected to take, ns. While the first launch of a shape has not been seen
 * to finish, each further one is taken to be several times as long, up to a limit, as long as
 * nothing is known to the contrary. */
int64_t costs_expect(struct cost *cost);

/* What is known of one launch. */
struct costs_sample {
    int64_t ns; /* of the device's time, at most, less the launch if the device was idle before */
    int64_t most_ns; /* with it, */
    int64_t low_ns;  /* and at least, if no other process had work; */
    int64_t
        clock_ns; /* by the clock, which knows what others had, and not when; 0: it does not know */
    int64_t own_ns; /* what others did not have of the time, 1 at least; 0: that is not known */
    int alone;      /* no other process had work */
    int queued;     /* its stream was at work before it: it began at any moment of a turn */
    int crowded;    /* other streams had work: it is known to within what they took */
    int anew;       /* what was known before does not hold any more */
};

void costs_learn(struct costs *costs, struct cost *cost, const struct costs_key *key,
                 const struct costs_sample *sample);

/* The first launch of a shape took no more than this; what others had of it is not known yet. */
void costs_note_first(struct costs *costs, struct cost *cost, const struct costs_key *key,
                      int64_t ns);

/* The first launch of a shape has been running for so long: others take as long at least. */
void costs_note_running(struct cost *cost, int64_t ns);

/* Others were found to use the device, and have perhaps for some time: what was measured lately has
 * perhaps their turns in it. */
void costs_doubt(struct costs *costs);

/* The handle is gone, and may come back as something else. */
void costs_forget(struct costs *costs, const struct costs_key *key);

#endif
