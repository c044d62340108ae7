/* SPDX-License-Identifier: Apache-2.0 */
/* event.h -- struct event, for streams, captures and graphs. */
#ifndef PYVGPU_SIMULATOR_CUDA_EVENT_H
#define PYVGPU_SIMULATOR_CUDA_EVENT_H

#include "queue.h"

struct event {
    uint32_t magic;
    unsigned int flags;
    uint64_t serial; /* incremented by each record */
    uint32_t device;
    bool is_recorded;
    uint64_t context_id;
    uint64_t stream; /* that it was recorded in */
    struct moment moment;
    uint64_t finished; /* when the device reached it */
    void *capture;     /* struct remembered, if it was recorded in a capture */
    struct event *next;
};

/* NULL if the handle is no event. */
struct event *event_find(CUevent handle);

CUresult event_record(struct event *event, struct stream *stream);

#endif
