/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h -- the two forms of what is done on a stream. */
#ifndef PYVGPU_CUDA_STREAM_H
#define PYVGPU_CUDA_STREAM_H

#include "driver.h"

/* A stream as a hook was given it. Handle 0 is the legacy default stream to the one form of every
 * function, and the thread's own to the other. */
struct stream {
    CUstream handle;
    int per_thread;
};

#define STREAM_LEGACY(handle)     ((struct stream) {handle, 0})
#define STREAM_PER_THREAD(handle) ((struct stream) {handle, 1})

/* The driver's function of the form that knows this stream. */
#define STREAM_CALL(stream, symbol) ((stream)->per_thread ? driver.symbol##_ptsz : driver.symbol)

#endif
