/* SPDX-License-Identifier: Apache-2.0 */
/* queue_parts.h -- per-device state of this process, shared by queue.c and gate.c. */
#ifndef PYVGPU_SIMULATOR_QUEUE_PARTS_H
#define PYVGPU_SIMULATOR_QUEUE_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "queue.h"

/* Work that the model may know, by its place there. */
struct place {
    _Atomic uint64_t ticket; /* 0: free, or the work is done and its effect too */
    uint64_t next;           /* the ticket behind it in its queue; 0: none yet */
    struct effect effect;
    uint8_t queue;
    bool is_at_gate;
};

/* Tickets of one queue whose effects are not done, in order. */
struct local_queue {
    unsigned int users; /* streams */
    uint32_t count;
    uint64_t first, last; /* 0: it is empty, or was never used */
};

struct local_device {
    pthread_mutex_t lock;
    pthread_cond_t gate_added;
    _Atomic uint64_t outstanding; /* work whose effect is not done */
    struct place *places;
    uint32_t *unused; /* places, a stack */
    uint32_t unused_count;
    uint32_t known;     /* places from here on were never used */
    struct gate *gates; /* by ticket */
    bool has_thread;
    uint64_t *due; /* tickets of finished work, for apply_effects() */
    struct local_queue queues[MODEL_QUEUES];
};

struct local_device *queue_local(uint32_t device);
uint32_t queue_local_number(const struct local_device *local);

static inline struct place *queue_local_place(const struct local_device *local, uint64_t ticket)
{
    return &local->places[ticket % MODEL_PLACES];
}

/* --- under local->lock ------------------------------------------------------------------------ */

/* Advance the device's time to now and apply finished effects; returns when to check ticket again.
 */
uint64_t queue_local_advance(struct local_device *local, uint64_t ticket);

/* Wait, without the lock, until the stream's queue has room for one more, as a launch into a full
 * queue does. */
CUresult queue_local_make_room(struct local_device *local, const struct stream *stream);

/* The caller made room. Returns the ticket. */
uint64_t queue_local_enqueue(struct local_device *local, struct stream *stream,
                             const struct work_order *order);

/* --- gates ----------------------------------------------------------------------------------- */

struct gate {
    struct gate *next;
    uint64_t ticket;
    bool (*is_open)(void *);
    void (*run)(void *);
    void *data;
};

/* Is the calling thread one that opens gates? It must not wait for work behind a gate. */
bool gate_keeper_asks(void);

#endif
