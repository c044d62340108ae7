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
    uint32_t life; /* of its home */
};

enum mark_state {
    MARK_AHEAD,  /* the device has not come to it */
    MARK_PASSED, /* it has */
    MARK_LOST,   /* nobody will ever know */
};

/* Have marks for oneself: 0 if another thread has them. */
int marks_try(void);
void marks_leave(void);

/* The rest but for mark_set_own() is for who has them. */

/* Get an event for *stream*, not yet in it: 0, or -1 if there is none to be had. */
int mark_take(struct mark *mark, const struct stream *stream);
void mark_give_back(struct mark *mark);

/* Set *mark* behind everything that is in *stream*, which the program is using at this moment: 0,
 * or -1, and then the mark is as it was. */
int mark_set_own(const struct mark *mark, const struct stream *stream);

/* The same for a stream that the program uses elsewhere, and so for one that has a name. */
int mark_set(struct mark *mark, const struct stream *stream);

enum mark_state mark_look(const struct mark *mark);

enum { MARK_TIME_LOST = -2 };

/* Of two that have passed: the time between them, ns; below 0 if it cannot be had, because the
 * marks are lost or, any other number, because the driver does not say. */
int64_t mark_between(const struct mark *begin, const struct mark *end);

/* When a mark was passed, CLOCK_MONOTONIC; at most *now*, and as exact as can be told. */
uint64_t mark_when(const struct mark *mark, uint64_t now);

/* Wait until no mark is being set, and hold others off. */
void marks_stop(void);

/* The context *handle* is about to end, or with NULL any may: its marks are lost. Stopped. */
void marks_forget(CUcontext handle);

void marks_after_fork(void);

#endif
