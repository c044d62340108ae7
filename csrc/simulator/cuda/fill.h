/* SPDX-License-Identifier: Apache-2.0 */
/* fill.h -- memset of device memory, shared with graphs. */
#ifndef PYVGPU_SIMULATOR_CUDA_FILL_H
#define PYVGPU_SIMULATOR_CUDA_FILL_H

#include "queue.h"

struct fill {
    CUdeviceptr address;
    uint64_t pitch; /* bytes from row to row */
    uint64_t value;
    uint64_t element; /* bytes: 1, 2 or 4 */
    uint64_t width;   /* elements of a row */
    uint64_t height;
};

CUresult fill_submit(struct stream *stream, const struct fill *fill);

/* Set the memory now. False if it is not device memory. */
bool fill_now(const struct fill *fill);

#endif
