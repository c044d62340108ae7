/* SPDX-License-Identifier: Apache-2.0 */
/* graphmemory.h -- the memory of graphs: what their nodes need, and what the driver took for it.
 *
 * A device has one store for the memory of all graphs. It grows when a graph is launched or
 * uploaded, keeps what graphs no longer use, and shrinks when it is trimmed.
 */
#ifndef PYVGPU_CUDA_GRAPHMEMORY_H
#define PYVGPU_CUDA_GRAPHMEMORY_H

#include "cuda/growth.h"

/* What one graph needs. */
struct graph_needs {
    uint64_t bytes[REGION_DEVICES];
    int blocks; /* that it allocates and does not free itself */
    int any;
};

/* Sum up the memory nodes of *graph* and of its children; the driver's error if it has none to
 * say. */
CUresult graph_needs_of(CUgraph graph, struct graph_needs *needs);

/* A graph on its way to the device: its claims, by device. */
struct graph_claims {
    struct claim claims[REGION_DEVICES];
    unsigned calls[REGION_DEVICES];
};

/* Cover what *needs* may make the stores grow. *graph* is its name. A graph that was the last one
 * to use the store finds its memory there, and is charged nothing. */
CUresult graph_memory_reserve(struct graph_claims *claims, const struct graph_needs *needs,
                              const void *graph, const struct stream *stream);

/* The driver has answered; *graph* is NULL if it was not launched. */
void graph_memory_settle(struct graph_claims *claims, const void *graph);

/* *graph* is gone, or is not what it was. */
void graph_memory_forget(const void *graph);

void graph_memory_after_fork(void);

#endif
