/* SPDX-License-Identifier: Apache-2.0 */
/* model.h -- a device's time: whose work runs when.
 *
 * Pure state and arithmetic. Nobody runs the device: whoever holds its lock says how late it is
 * (model_advance), and the model works out what ran since. It lives in shared memory and may be
 * left at any instruction by a process that is killed: each change is one store, or can be done
 * again. It reads no clock, so a test can give it any time.
 *
 * A lane is one process on one device. Its work stands in queues (streams); a queue's head may
 * run when what it waits for is done. Engines: the SMs, and one copy engine for each direction.
 * On each engine the lanes that have work take turns of MODEL_SLICE_NS.
 */
#ifndef PYVGPU_SIMULATOR_MODEL_H
#define PYVGPU_SIMULATOR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_SLICE_NS 1000000
#define MODEL_NEVER    UINT64_MAX

enum {
    MODEL_LANES = 1024,
    MODEL_RING = 1024,          /* work of a lane that can wait at once; a power of two */
    MODEL_QUEUES = 64,          /* queue 0 is the legacy default stream */
    MODEL_FIRST_UNORDERED = 40, /* queues from here on do not wait for queue 0, nor it for them */
    MODEL_BUSY_STEPS = 64,
    MODEL_BUSY_SHIFT = 24, /* a step of the busy history is 2^24 ns, about 17 ms */
};

enum model_engine {
    ENGINE_SM,
    ENGINE_HOST_TO_DEVICE,
    ENGINE_DEVICE_TO_HOST,
    ENGINE_DEVICE_TO_DEVICE,
    MODEL_ENGINES,
    ENGINE_NONE = MODEL_ENGINES, /* a mark in the queue: done as soon as it is its turn */
    ENGINE_GATE,                 /* waits until its owner opens it */
};

enum work_state { WORK_WAITING, WORK_AT_GATE, WORK_DONE };

struct model_work {
    uint64_t submitted;
    uint64_t remaining; /* ns it still needs of its engine */
    uint64_t finished;  /* when it was done, or came to its gate */
    uint64_t after;     /* ticket that must be done first; 0: none */
    uint64_t next;      /* ticket behind it in the same queue; 0: none */
    uint32_t units;     /* SMs it takes */
    uint8_t engine;
    uint8_t queue;
    uint8_t state;
    uint8_t unused;
};

struct model_busy {
    uint64_t step; /* time >> MODEL_BUSY_SHIFT */
    uint32_t sm_ns;
    uint32_t copy_ns;
};

struct model_lane {
    uint64_t enqueued; /* the last ticket given; tickets count from 1 */
    uint64_t retired;  /* all tickets up to this one are done and forgotten */
    uint64_t busy_ns;  /* time it has had of the SMs */
    uint64_t filled;   /* bit per queue that has work */
    uint64_t head[MODEL_QUEUES];
    uint64_t tail[MODEL_QUEUES];
    struct model_busy history[MODEL_BUSY_STEPS];
    struct model_work ring[MODEL_RING];
};

struct model_turn {
    uint32_t lane;
    uint32_t unused;
    uint64_t slice_left;
};

struct model_device {
    uint64_t now;        /* how far the model has come */
    uint64_t next_event; /* when something is done if nobody adds work; MODEL_NEVER: nothing runs */
    uint64_t busy_ns;    /* time anybody had of the SMs */
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
};

/* Forget everything a lane had: its owner is gone. */
void model_reset_lane(struct model *model, uint32_t lane);

/* Put work behind queue's tail: its ticket, or 0 if the ring is full. Only the lane's owner. */
uint64_t model_enqueue(struct model *model, uint32_t lane, const struct model_work *work);

/* Forget all tickets up to this one: they are done. Only the lane's owner. */
void model_retire(struct model *model, uint32_t lane, uint64_t ticket);

/* Work out what ran until now. False if there is more to work out: give others the lock first. */
bool model_advance(struct model *model, uint64_t now);

bool model_is_done(const struct model_lane *lane, uint64_t ticket);

/* Let the work at its gate go on. */
void model_open_gate(struct model *model, uint32_t lane, uint64_t ticket, uint64_t now);

/* The earliest moment at which ticket can be done, by what stands before it in its queue. */
uint64_t model_earliest(const struct model *model, uint32_t lane, uint64_t ticket);

/* How many lanes have work now. */
unsigned int model_active(const struct model_device *device);

#endif
