/* SPDX-License-Identifier: Apache-2.0 */
/* queueparts.h -- what queue.c and gate.c share: this process's side of each device. */
#ifndef PYVGPU_SIMULATOR_QUEUEPARTS_H
#define PYVGPU_SIMULATOR_QUEUEPARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "queue.h"

struct place {
    struct effect effect;
    uint8_t queue;
    bool is_done; /* on the device */
    bool is_at_gate;
    bool is_applied; /* the effect too */
};

struct local_device {
    pthread_mutex_t lock;
    pthread_cond_t gate_added;
    _Atomic uint64_t enqueued;
    _Atomic uint64_t retired; /* all up to here applied */
    struct place *ring;
    struct gate *gates; /* by ticket */
    bool has_thread;
    unsigned int users[MODEL_QUEUES];
};

struct local_device *local_of(uint32_t device);
uint32_t local_number(const struct local_device *local);

static inline struct place *local_place(const struct local_device *local, uint64_t ticket)
{
    return &local->ring[ticket % MODEL_RING];
}

/* --- under local->lock ------------------------------------------------------------------------ */

/* Bring the device's time up to now and do what is due; when to look again for ticket's sake. */
uint64_t local_look(struct local_device *local, uint64_t ticket);

/* Let the ring have room for one more; it may wait, without the lock. */
CUresult local_make_room(struct local_device *local);

/* With room. The ticket. */
uint64_t local_enqueue(struct local_device *local, struct stream *stream,
                       const struct work_order *order);

/* --- gates ----------------------------------------------------------------------------------- */

/* Is this the thread that opens gates? It must wait for nothing that it has to bring about. */
bool gate_keeper_asks(void);

#endif
