/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h -- a stream argument, with legacy or per-thread default stream semantics. */
#ifndef PYVGPU_SHIM_CUDA_WORK_STREAM_H
#define PYVGPU_SHIM_CUDA_WORK_STREAM_H

#include "shim/driver.h"

/* A stream as passed to a hook. Handle 0 is the legacy default stream in one form of every
 * function, and the per-thread default stream in the other (_ptsz). */
struct stream {
    CUstream handle;
    int per_thread;
};

#define STREAM_LEGACY(handle)     ((struct stream) {handle, 0})
#define STREAM_PER_THREAD(handle) ((struct stream) {handle, 1})

/* The form of a driver function that fits this stream. */
#define STREAM_CALL(stream, symbol) ((stream)->per_thread ? driver.symbol##_ptsz : driver.symbol)

#endif
