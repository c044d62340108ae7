/* SPDX-License-Identifier: Apache-2.0 */
/* graphmemory.h -- memory that graphs allocate and free.
 *
 * The address is fixed when the node is made. The bytes come from a reserve that each device has
 * for all graphs of the process: taken at the first launch or upload that needs them, kept when a
 * launch is over, given back by cuDeviceGraphMemTrim alone.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_GRAPHMEMORY_H
#define PYVGPU_SIMULATOR_CUDA_GRAPHMEMORY_H

#include "cuda/api.h"

struct graph;
struct graph_memory;
struct node;
struct stream;

/* Parameters of a new allocation node; the address is written. */
struct graph_request {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUdeviceptr *address;
};

/* For graph_node_create and captures: the argument is a graph_request, or an address. */
CUresult graph_memory_set_allocation(struct node *node, const void *request);
CUresult graph_memory_set_freed(struct node *node, const void *address);

/* Add a node's reference; drop one. NULL is allowed. */
struct graph_memory *graph_memory_keep(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);

/* Has it nodes that allocate or free, itself or in a child? */
bool graph_memory_is_in(const struct graph *graph);

/* One executable of a graph with allocations at a time: INVALID_VALUE for a second. */
CUresult graph_memory_instantiate(const struct graph *graph);
void graph_memory_retire(const struct graph *graph);

/* Reserve the bytes that a launch will need. */
CUresult graph_memory_upload(const struct graph *graph);

/* The same, and allocate. Memory that an earlier launch left is freed first if is_freeing, else
 * the result is INVALID_VALUE.
 */
CUresult graph_memory_launch(struct stream *stream, const struct graph *graph, bool is_freeing);

/* Execute a free node. */
CUresult graph_memory_free(struct stream *stream, struct graph_memory *memory);

/* Free memory that a launch left, in the stream's order, or now: INVALID_VALUE if address is none.
 */
CUresult graph_memory_free_address(struct stream *stream, CUdeviceptr address);

#endif
