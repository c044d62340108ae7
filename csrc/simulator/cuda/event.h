/* SPDX-License-Identifier: Apache-2.0 */
/* event.h -- what other files need of an event. */
#ifndef PYVGPU_SIMULATOR_CUDA_EVENT_H
#define PYVGPU_SIMULATOR_CUDA_EVENT_H

#include "queue.h"

struct event {
    uint32_t magic;
    unsigned int flags;
    uint64_t serial; /* one more with each record */
    uint32_t device;
    bool is_recorded;
    uint64_t context_id;
    uint64_t stream; /* that it was recorded in */
    struct moment moment;
    uint64_t finished; /* when the device came to it */
    void *capture;     /* what it was recorded behind, if that was in a capture */
    struct event *next;
};

/* NULL if the handle is no event. */
struct event *event_find(CUevent handle);

CUresult event_record(struct event *event, struct stream *stream);

#endif
