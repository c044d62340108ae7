/* SPDX-License-Identifier: Apache-2.0 */
/* graph_memory.h -- charges the memory of graphs' memory nodes, which the driver pools per device.
 *
 * A device has one store for the memory of all graphs. It grows when a graph is launched or
 * uploaded, keeps memory that graphs no longer use, and shrinks when it is trimmed.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_GRAPH_MEMORY_H
#define PYVGPU_SHIM_CUDA_MEMORY_GRAPH_MEMORY_H

#include "shim/cuda/memory/pool_charge.h"

/* The memory that one graph needs. */
struct graph_needs {
    uint64_t bytes[REGION_DEVICES];
    int blocks; /* allocated and not freed by the graph itself */
    int any;
};

/* Sum up the memory nodes of *graph* and of its child graphs; the driver's error if it does not
 * answer. */
CUresult graph_memory_needs_of(CUgraph graph, struct graph_needs *needs);

/* The claims of a graph that is being launched, by device. */
struct graph_claims {
    struct claim claims[REGION_DEVICES];
    unsigned calls[REGION_DEVICES];
};

/* Cover the growth of the stores that *needs* may cause. *graph* identifies the graph. If it was
 * the last one to use the store, its memory is still there, and nothing is charged. */
CUresult graph_memory_reserve(struct graph_claims *claims, const struct graph_needs *needs,
                              const void *graph, const struct stream *stream);

/* The driver has answered; *graph* is NULL if it was not launched. */
void graph_memory_settle(struct graph_claims *claims, const void *graph);

/* *graph* was destroyed or changed. */
void graph_memory_forget(const void *graph);

void graph_memory_after_fork(void);

#endif
