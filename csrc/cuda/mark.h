/* SPDX-License-Identifier: Apache-2.0 */
/* mark.h -- events in the program's streams, by which this process learns what the device has done.
 *
 * A mark is an event of the context that the stream belongs to. Marks are set and read by one
 * thread at a time, and nobody waits for his turn: who finds another at it goes without. So the
 * program's own calls never wait for a mark, but for those that end a stream or a context, or begin
 * a capture: they wait until no mark is being set, and no mark outlives its context.
 */
#ifndef PYVGPU_CUDA_MARK_H
#define PYVGPU_CUDA_MARK_H

#include "cuda/stream.h"

#include <stdint.h>

struct mark_home;

/* An event, and the context that it is of. Zeros: none. */
struct mark {
    CUevent event;
    struct mark_home *home;
    uint32_t life;   /* of its home */
    uint64_t set_ns; /* CLOCK_MONOTONIC: it was passed no earlier; see mark_look() */
};

enum mark_state {
    MARK_AHEAD,  /* the device has not come to it */
    MARK_PASSED, /* it has */
    MARK_LOST,   /* nobody will ever know */
};

/* Have marks for oneself: 0 if another thread has them. */
int marks_try(void);
void marks_leave(void);

/* The rest is for the thread that has them. */

/* Set a new mark behind everything that is in *stream*: 0, or -1 if there is none to be had. */
int mark_set(struct mark *mark, const struct stream *stream);
void mark_give_back(struct mark *mark);

/* Whether it was passed; if not, it is known to be passed no earlier than *now*. */
enum mark_state mark_look(struct mark *mark, uint64_t now);

/* When a mark was passed, CLOCK_MONOTONIC: not before it was set, nor after *now*; 0 if the driver
 * does not say. The device's clock is related to ours by that alone, and by *likely_ns* for the
 * first one of a context: so times of marks compare best with each other, and those that are asked
 * for later are more exact. */
uint64_t mark_when(const struct mark *mark, uint64_t likely_ns, uint64_t now);

/* Wait until no mark is being set, and hold others off. */
void marks_stop(void);

/* The context *handle* is about to end, or with NULL any may: its marks are lost. Stopped. */
void marks_forget(CUcontext handle);

void marks_after_fork(void);

#endif
