/* SPDX-License-Identifier: Apache-2.0 */
/* mark.h -- CUDA events in the program's streams that show which work the device has done.
 *
 * A mark is an event of the context that the stream belongs to. One thread at a time sets and reads
 * marks, under a try-lock: a thread that finds the marks taken goes on without. So the program's
 * own calls never wait for a mark, except those that end a stream or a context, or begin a capture:
 * they wait until no mark is being set, and no mark outlives its context. Setting one takes as long
 * as a launch into a full queue, in a stream that waits perhaps for such a call: so the end of
 * another stream, and a capture, wait only for a moment.
 */
#ifndef PYVGPU_SHIM_CUDA_WORK_MARK_H
#define PYVGPU_SHIM_CUDA_WORK_MARK_H

#include "shim/cuda/work/stream.h"

#include <stdint.h>

struct mark_home;

/* An event and its context. All zero: none. */
struct mark {
    CUevent event;
    struct mark_home *home;
    uint32_t life;   /* of its home */
    uint64_t set_ns; /* CLOCK_MONOTONIC: not passed before this; see mark_poll() */
};

enum mark_state {
    MARK_AHEAD,  /* the device has not passed it */
    MARK_PASSED, /* it has */
    MARK_LOST,   /* unknown for ever: its context is gone or failed */
};

/* Take the marks; 0 if another thread holds them. */
int mark_try(void);
void mark_leave(void);

/* The rest is for the thread that holds them. */

/* Set a new mark behind all work in *stream*: 0, or -1 if that fails. */
int mark_set(struct mark *mark, const struct stream *stream);
void mark_give_back(struct mark *mark);

/* Whether the device has passed it; if not, raise set_ns to *now*. */
enum mark_state mark_poll(struct mark *mark, uint64_t now);

/* When a mark was passed, CLOCK_MONOTONIC: not before it was set, nor after *now*; 0 if the driver
 * does not say. Those bounds alone relate the device's clock to ours, and *likely_ns* for the first
 * mark of a context: so times of marks compare best with each other, and later answers are more
 * exact. */
uint64_t mark_when(const struct mark *mark, uint64_t likely_ns, uint64_t now);

/* Wait until no other thread holds the marks, and take them. */
void mark_stop(void);

/* Likewise, but if their holder is in the driver for long, to set a mark in another stream than
 * *stream* (its name), visit instead: 0. The visitor may withdraw lanes from the holder, which
 * finds them so, and finds captures that have begun; then it calls mark_end_visit(). */
int mark_stop_or_visit(uintptr_t stream);
void mark_end_visit(void);

/* The context *handle* is about to end, or with NULL any may: its marks are lost. Call it after
 * mark_stop(). */
void mark_forget(CUcontext handle);

void mark_after_fork(void);

#endif
