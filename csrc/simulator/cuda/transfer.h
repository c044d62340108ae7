/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h -- common form of all copies: slices of rows, with pitches, from and to an address. */
#ifndef PYVGPU_SIMULATOR_CUDA_TRANSFER_H
#define PYVGPU_SIMULATOR_CUDA_TRANSFER_H

#include "queue.h"

/* Simulator-only, for replays of recorded traces: the calling thread's next copy or memset takes
 * *ns*, whatever its size. Captured ones ignore it. */
void sim_transfer_takes(uint64_t ns);

/* The duration of a copy or memset, estimated as *ns*: the value that sim_transfer_takes set, once.
 */
uint64_t transfer_duration(uint64_t ns);

struct endpoint {
    uint64_t address; /* on the host or on a device, by its range */
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
    TRANSFER_WAITS,   /* the call returns when the copy is complete */
    TRANSFER_ORDERED, /* the call returns once the program may reuse pageable host memory; without
                         waiting if there is none */
};

/* Check a copy, submit it to the stream (or add it to the graph that the stream captures), and wait
 * for it as *wait* says. INVALID_VALUE: an address has no memory, or too little. */
CUresult transfer_submit(struct stream *stream, const struct transfer *transfer,
                         enum transfer_wait wait);

/* Are all *bytes* from *address* on device memory of this process? */
bool transfer_is_device(uint64_t address, uint64_t bytes);

/* The same, for a copy in the form of graph nodes (cuda/copy.c). */
CUresult copy_submit_3d(struct stream *stream, const CUDA_MEMCPY3D *copy);

#endif
