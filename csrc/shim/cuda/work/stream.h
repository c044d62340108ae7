/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h -- a stream argument, with legacy or per-thread default stream semantics. */
#ifndef PYVGPU_SHIM_CUDA_WORK_STREAM_H
#define PYVGPU_SHIM_CUDA_WORK_STREAM_H

#include "core/compiler.h"
#include "shim/driver.h"

#include <stdint.h>

/* A stream as passed to a hook. Handle 0 is the legacy default stream in one form of every
 * function, and the per-thread default stream in the other (_ptsz). */
struct stream {
    CUstream handle;
    int per_thread;
};

#define STREAM_LEGACY(handle)     ((struct stream) {handle, 0})
#define STREAM_PER_THREAD(handle) ((struct stream) {handle, 1})

/* Whether *handle* is an object with a context of its own, not one of the default streams, which
 * belong to the current context. */
static inline int stream_is_object(CUstream handle)
{
    return handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
}

/* Only its address counts, which identifies the calling thread. */
extern __thread char stream_thread __attribute__((tls_model("initial-exec")));

/* A stream's identity: the per-thread default stream is named by its thread. */
static inline uintptr_t stream_name(const struct stream *stream)
{
    if (likely(stream_is_object(stream->handle)))
        return (uintptr_t) stream->handle;
    return stream->handle == CU_STREAM_PER_THREAD || (stream->per_thread && !stream->handle)
               ? (uintptr_t) &stream_thread
               : (uintptr_t) CU_STREAM_LEGACY;
}

/* The form of a driver function that fits this stream. */
#define STREAM_CALL(stream, symbol) ((stream)->per_thread ? driver.symbol##_ptsz : driver.symbol)

#endif
