/* SPDX-License-Identifier: Apache-2.0 */
/* model.h -- time model of a device: schedules the work of all processes on its engines.
 *
 * Pure state and arithmetic. No thread runs the device: a caller that holds its lock passes the
 * current time (model_advance), and the model computes what ran since. It lives in shared memory,
 * and a process may be killed at any instruction: each change is one store, or can be redone. It
 * reads no clock, so a test can give it any time.
 *
 * A lane is one process on one device. Its work is in queues (streams); a queue's head may run when
 * its dependency is done. Engines: the SMs, and one copy engine for each direction. On each engine
 * the lanes that have work are time-sliced; the law says how long a slice is and what a switch
 * costs. Kernels of one lane run together as long as SMs are free, those of streams of higher
 * priority first.
 *
 * Lanes may form a group, as the clients of an MPS server do: they have their turns together. A
 * kernel of a group takes the SMs that the kernels before it leave, and is slower if these are
 * fewer than it could use. The lane that has run nothing for the longest time is first.
 *
 * Work has a place in its lane's pool and a ticket, which counts up and names the place: places are
 * reused in any order, so a waiting queue keeps no places but those of its own work.
 */
#ifndef PYVGPU_SIMULATOR_MODEL_H
#define PYVGPU_SIMULATOR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_NEVER UINT64_MAX

enum {
    MODEL_LANES = 1024,
    MODEL_PLACES = 16384, /* work of a lane that can wait at once; a power of two */
    MODEL_DONE_WORDS = MODEL_PLACES / 64,
    MODEL_RUNNERS = 256,        /* work of a group that runs on an engine at once */
    MODEL_QUEUES = 64,          /* queue 0 is the legacy default stream */
    MODEL_FIRST_UNORDERED = 40, /* queues from here on do not wait for queue 0, nor it for them */
    MODEL_BUSY_STEPS = 128,
    MODEL_BUSY_SHIFT = 24, /* a step of the busy history is 2^24 ns, about 17 ms */
};

enum model_engine {
    ENGINE_SM,
    ENGINE_HOST_TO_DEVICE,
    ENGINE_DEVICE_TO_HOST,
    ENGINE_DEVICE_TO_DEVICE,
    MODEL_ENGINES,
    ENGINE_NONE = MODEL_ENGINES, /* a mark in the queue: takes no engine, only its time */
    ENGINE_GATE,                 /* waits until its owner opens it */
};

enum work_state { WORK_WAITING, WORK_TIMED /* a mark, until .finished */, WORK_AT_GATE, WORK_DONE };

struct model_work {
    uint64_t ticket; /* 0: the place was never used */
    uint64_t submitted;
    uint64_t remaining; /* ns it still needs of its engine */
    uint64_t begun;     /* when its engine first ran it; 0: not yet, or it needs none */
    uint64_t finished;  /* when it was done, or came to its gate */
    uint64_t after;     /* ticket that must be done first; 0: none */
    uint64_t next;      /* ticket behind it in the same queue; 0: none */
    uint32_t units;     /* SMs it takes; 0: an event that waits for its lane's turn */
    uint8_t engine;
    uint8_t queue;
    uint8_t state;
    uint8_t priority; /* higher runs first */
};

/* What hardware and its driver do, as far as it is a parameter of the machine. */
struct model_law {
    uint64_t slice_ns;  /* a lane's turn while others wait; above 0 */
    uint64_t switch_ns; /* in which the SMs run nothing, from one lane to another */
};

struct model_busy {
    uint64_t step; /* time >> MODEL_BUSY_SHIFT */
    uint32_t sm_ns;
    uint32_t copy_ns;
};

struct model_lane {
    uint64_t enqueued; /* work so far */
    uint64_t busy_ns;  /* time it has had of the SMs, */
    uint64_t used_ns;  /* and of any engine */
    uint64_t filled;   /* bit per queue that has work */
    uint64_t served;   /* when its last work of an engine was done */
    uint32_t group;    /* the lane that its group is named by, + 1; 0: none */
    uint32_t limit;    /* most SMs that its kernels have together; 0: all */
    uint64_t head[MODEL_QUEUES];
    uint64_t tail[MODEL_QUEUES];
    struct model_busy history[MODEL_BUSY_STEPS];
    uint64_t done_words[MODEL_DONE_WORDS / 64]; /* bit per word of done[] that is not 0 */
    uint64_t done[MODEL_DONE_WORDS];            /* bit per place: done, and not yet taken */
    struct model_work places[MODEL_PLACES];
};

struct model_turn {
    uint32_t lane;
    uint32_t unused;
    uint64_t slice_left;
    uint64_t switch_left; /* until the lane really runs */
};

struct model_device {
    uint64_t now;        /* time that the model has reached */
    uint64_t next_event; /* when something is done if no work is added; MODEL_NEVER: idle */
    uint64_t busy_ns;    /* time that the SMs were busy */
    uint64_t copy_busy_ns;
    uint64_t units; /* SMs there are */
    struct model_turn turns[MODEL_ENGINES];
    struct model_busy history[MODEL_BUSY_STEPS];
    uint64_t active[MODEL_LANES / 64]; /* bit per lane that has work */
};

/* How a caller finds lane number n of the device. */
typedef struct model_lane *model_find_lane(void *context, uint32_t lane);

struct model {
    struct model_device *device;
    model_find_lane *find_lane;
    void *context;
    struct model_law law;
};

/* Clear a lane whose process is gone. */
void model_reset_lane(struct model *model, uint32_t lane);

/* Let a lane that has no work be in the group named by a lane, whose history then has the group's
 * load, with at most so many SMs (0: all). */
void model_join(struct model *model, uint32_t lane, uint32_t leader, uint32_t limit);

/* Append work to its queue, in a place that is free; returns its ticket. Only the lane's owner
 * calls this; it knows the free places: those never used, and those from model_take_done(). */
uint64_t model_enqueue(struct model *model, uint32_t lane, uint32_t place,
                       const struct model_work *work);

/* Take the place of work that is done; false if there is none. Only for the lane's owner. */
bool model_take_done(struct model_lane *lane, uint32_t *place);

static inline struct model_work *model_work_of(struct model_lane *lane, uint64_t ticket)
{
    return &lane->places[ticket % MODEL_PLACES];
}

/* Compute what ran until now. False if there is more to compute: release the lock for others
 * first. */
bool model_advance(struct model *model, uint64_t now);

bool model_is_done(const struct model_lane *lane, uint64_t ticket);

/* Let the work at its gate go on. */
void model_open_gate(struct model *model, uint32_t lane, uint64_t ticket, uint64_t now);

/* The earliest time at which ticket can be done, by the work before it in its queue. */
uint64_t model_earliest(const struct model *model, uint32_t lane, uint64_t ticket);

/* How many lanes have work now. */
unsigned int model_active(const struct model_device *device);

#endif
