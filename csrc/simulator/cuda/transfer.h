/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h -- common form of all copies: slices of rows, with pitches, from and to an address. */
#ifndef PYVGPU_SIMULATOR_CUDA_TRANSFER_H
#define PYVGPU_SIMULATOR_CUDA_TRANSFER_H

#include "queue.h"

/* Simulator-only, for replays of recorded traces: the calling thread's next copy or memset takes so
 * long, whatever its size; captured ones ignore it. */
void sim_transfer_takes(uint64_t ns);

/* The duration: *ns*, or the value set by sim_transfer_takes, once. */
uint64_t transfer_duration(uint64_t ns);

struct endpoint {
    uint64_t address; /* on the host or on a device: the address says which */
    uint64_t pitch;   /* bytes from row to row */
    uint64_t slice;   /* bytes from slice to slice */
};

struct transfer {
    struct endpoint to, from;
    uint64_t width; /* bytes of a row */
    uint64_t height;
    uint64_t depth;
};

enum transfer_wait {
    TRANSFER_WAITS,   /* the call returns when the bytes are there */
    TRANSFER_ORDERED, /* the call returns as soon as the program may reuse the host memory: at once
                         if that is pinned */
};

/* Check it, put it into the stream (or the graph that it captures), and wait if requested. */
CUresult transfer_submit(struct stream *stream, const struct transfer *transfer,
                         enum transfer_wait wait);

/* All of bytes from address on is device memory of this process. */
bool transfer_is_device(uint64_t address, uint64_t bytes);

/* A copy in the form of graph nodes (cuda/copy.c). */
CUresult copy_submit_3d(struct stream *stream, const CUDA_MEMCPY3D *copy);

#endif
