/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h -- tracks stream captures, in which work is recorded and not executed. */
#ifndef PYVGPU_SHIM_CUDA_WORK_CAPTURE_H
#define PYVGPU_SHIM_CUDA_WORK_CAPTURE_H

#include "core/compiler.h"
#include "shim/cuda/work/stream.h"

extern int captures; /* begun in this process and not ended */

/* Whether any stream may be capturing. */
static inline int capture_is_going_on(void)
{
    return unlikely(__atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0);
}

/* Whether work in *stream* is recorded. */
int capture_records(const struct stream *stream);

/* Whether nothing may be put into *stream*: it would be recorded, or break another capture. */
int capture_forbids(const struct stream *stream);

/* Whether the driver says that *stream* captures; *result* is its answer. */
int capture_has(const struct stream *stream, CUresult *result);

/* A capture is about to begin; or one has ended, or was refused. */
void capture_count_up(void);
void capture_count_down(void);

struct capture;

/* A capture has begun in *stream*: 0 if there is no room for it. */
int capture_register(const struct stream *stream, int is_graphics);

/* The registered capture that was begun in the stream of that name, or NULL. */
struct capture *capture_find(uintptr_t stream, int is_graphics);

/* It has ended: 0 if another thread has unregistered it. */
int capture_unregister(struct capture *capture);

/* The stream, or those of the context (NULL: any), are about to end. */
void capture_end_stream(CUstream stream);
void capture_end_context(CUcontext context);

void capture_after_fork(void);

#endif
