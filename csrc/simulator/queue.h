/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h -- streams: this process's ordered work on its devices.
 *
 * The device's time is the model's (model.h, shared); the effects of work on bytes stay here. This
 * process applies them when it sees that the work is finished, in the order of submission. One lock
 * for each device guards its streams; it is taken before the device's own.
 */
#ifndef PYVGPU_SIMULATOR_QUEUE_H
#define PYVGPU_SIMULATOR_QUEUE_H

#include "process.h"

/* The effect of work on memory, applied when the work is finished. */
struct effect {
    void (*apply)(struct effect *effect); /* NULL: nothing */
    struct work_context *work;            /* its sticky error may be set */
    void *memory;                         /* freed after it, if not NULL */
    uint64_t begun, finished; /* when the device ran it, from first to last; set before apply */
    uint64_t arguments[12];
};

/* A point in a stream that other streams can wait for. */
struct moment {
    uint32_t device;
    uint64_t ticket; /* 0: there was nothing to wait for */
};

struct work_order {
    enum model_engine engine;
    uint64_t ns;
    uint32_t units;
    uint64_t after; /* a ticket of the same device, or 0 */
    struct effect effect;
};

enum { STREAM_WAITS = 8 };

struct stream {
    uint32_t magic; /* STREAM_MAGIC while it lives; the memory is never used for anything else */
    uint32_t device;
    struct work_context *work;
    struct stream *next;
    uint64_t id;
    uint64_t last; /* ticket of what was submitted last */
    unsigned int flags;
    int priority;
    uint8_t queue;
    uint8_t last_engine;    /* that work in it took last: an enum model_engine */
    bool is_default;        /* cannot be destroyed by name */
    struct CUctx_st *green; /* the green context that it is of; NULL: none */
    uint32_t most_units;    /* SMs available to its kernels */
    void *capture;          /* struct member of its capture (cuda/capture.c); NULL: none */
    struct {
        uint64_t stream;
        uint64_t ticket;
    } waits[STREAM_WAITS]; /* for events of other streams, the latest */
    unsigned int next_wait;
};

/* The stream behind a handle; NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are allowed.
 * per_thread: NULL is the per-thread stream (_ptds and _ptsz forms). INVALID_HANDLE if it is none.
 */
CUresult stream_find(struct work_context *work, CUstream handle, bool per_thread,
                     struct stream **stream);

/* Put work into the stream; waits only if the stream's queue is full. */
CUresult queue_submit(struct stream *stream, const struct work_order *order, struct moment *moment);

/* Wait until all work of the stream is done; test whether it is (NOT_READY). */
CUresult stream_synchronize(struct stream *stream);
CUresult stream_query(struct stream *stream);

/* Let the stream wait at a gate. Once the stream has reached it, the device's gate thread polls
 * is_open (NULL: open at once), calls run (or NULL), and lets the stream go on.
 */
CUresult gate_submit(struct stream *stream, bool (*is_open)(void *), void (*run)(void *),
                     void *data);

/* Let the stream wait for a moment of another one, on any device. */
CUresult gate_wait(struct stream *stream, const struct moment *moment);

/* Record a wait for a ticket of another stream; test for a wait for that ticket or a later one. */
void stream_note_wait(struct stream *stream, uint64_t other, uint64_t ticket);
bool stream_waits_for(const struct stream *stream, uint64_t other, uint64_t ticket);

/* Is it past? Was it seen to be past before, without updating the device? */
bool queue_moment_is_past(const struct moment *moment);
bool queue_moment_was_passed(const struct moment *moment);
CUresult queue_moment_wait(const struct moment *moment);

/* Wait until nothing of this process is waiting on the device. */
void queue_drain(uint32_t device);

/* True in free mode, when no work of this process waits on the device: run work now, without
 * enqueueing it. */
bool queue_is_immediate(uint32_t device);

/* --- between the parts of queueing ----------------------------------------------------------- */

enum {
    STREAM_MAGIC = 0x73747265,
    STREAM_DETACHED_MAGIC = 0x64657461, /* its green context is gone */
};

/* Create a stream in the context; flags as cuStreamCreate's. */
CUresult stream_open(struct work_context *work, unsigned int flags, int priority,
                     struct stream **stream);

/* Free the stream once its work is done; its handle is invalid from now on. */
void stream_close(struct stream *stream);

/* Visit the streams of a context, or those of one green context in it; under a lock, so visit must
 * not open or close streams.
 */
typedef void stream_visitor(struct stream *stream, void *data);
void stream_each(struct work_context *work, struct CUctx_st *green, stream_visitor *visit,
                 void *data);

/* Default streams, and the end of all streams of a context. */
CUresult stream_open_default(struct work_context *work);
void stream_close_all(struct work_context *work);

/* Assign a queue of the model to a stream; release it. */
uint8_t queue_take(uint32_t device, bool ordered);
void queue_give(uint32_t device, uint8_t queue);

/* Is all work done of the streams that the legacy stream waits for? */
bool queue_is_ordered_work_done(uint32_t device);

#endif
