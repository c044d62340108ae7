/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h -- streams: what this process asked its devices to do, in which order.
 *
 * The device's time is the model's (model.h, shared); what the work does to bytes stays here and is
 * done by this process when it sees that the work is finished, in the order of submission. Streams
 * are looked at under one lock for each device, which is taken before the device's own.
 */
#ifndef PYVGPU_SIMULATOR_QUEUE_H
#define PYVGPU_SIMULATOR_QUEUE_H

#include "process.h"

/* What is done to bytes when the work is finished. */
struct effect {
    void (*apply)(struct effect *effect); /* NULL: nothing */
    struct work_context *work;
    void *memory; /* freed after it, if not NULL */
    uint64_t arguments[8];
};

/* A moment in the life of a stream. */
struct moment {
    uint32_t device;
    uint64_t ticket; /* 0: there was nothing to wait for */
};

struct work_order {
    enum model_engine engine;
    uint64_t ns;
    uint32_t units;
    struct effect effect;
};

/* The stream behind a handle: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD too. per_thread says
 * what NULL means (the _ptds and _ptsz forms). INVALID_HANDLE if it is none.
 */
CUresult stream_find(struct work_context *work, CUstream handle, bool per_thread,
                     struct stream **stream);

/* Put work into the stream; waits only if very much is waiting already. */
CUresult stream_submit(struct stream *stream, const struct work_order *order,
                       struct moment *moment);

/* Wait until all of the stream is done; look whether it is (NOT_READY). */
CUresult stream_synchronize(struct stream *stream);
CUresult stream_query(struct stream *stream);

/* Run function on the process's own thread when the stream comes to it. */
CUresult stream_submit_host(struct stream *stream, void (*function)(void *), void *data);

/* Let the stream wait for a moment of another one, on any device. */
CUresult stream_wait(struct stream *stream, const struct moment *moment);

bool moment_is_past(const struct moment *moment);
CUresult moment_wait(const struct moment *moment);

/* Wait until nothing of this process is waiting on the device. */
void queue_drain(uint32_t device);

/* True in free mode, when nothing of this process waits on the device: do it now, enqueue nothing.
 */
bool queue_is_immediate(uint32_t device);

/* Default streams, and the end of all streams of a context (process.c). */
CUresult stream_open_default(struct work_context *work);
void stream_close_all(struct work_context *work);

#endif
