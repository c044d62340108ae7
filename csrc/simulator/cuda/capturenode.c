/* SPDX-License-Identifier: Apache-2.0 */
/* capturenode.c -- turns captured calls into graph nodes. */
#include "cuda/capture.h"
#include "cuda/graph.h"

static CUresult set_launch(struct node *node, const void *argument)
{
    return graph_kernel_keep_launch(node, argument);
}

static CUresult set_transfer(struct node *node, const void *argument)
{
    node->transfer = *(const struct transfer *) argument;
    node->is_captured = true;
    return CUDA_SUCCESS;
}

static CUresult set_fill(struct node *node, const void *argument)
{
    node->fill = *(const struct fill *) argument;
    return CUDA_SUCCESS;
}

static CUresult set_host(struct node *node, const void *argument)
{
    node->host = *(const CUDA_HOST_NODE_PARAMS *) argument;
    return CUDA_SUCCESS;
}

static CUresult set_graph(struct node *node, const void *argument)
{
    if (graph_memory_is_in(argument))
        return CUDA_ERROR_NOT_SUPPORTED;
    node->child = graph_copy(argument);
    if (!node->child)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->child->is_owned = true;
    return CUDA_SUCCESS;
}

CUresult capture_add_launch(struct stream *stream, const struct launch *launch)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_KERNEL, set_launch, launch);
}

CUresult capture_add_transfer(struct stream *stream, const struct transfer *transfer)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_MEMCPY, set_transfer, transfer);
}

CUresult capture_add_fill(struct stream *stream, const struct fill *fill)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_MEMSET, set_fill, fill);
}

CUresult capture_add_host(struct stream *stream, CUhostFn function, void *data)
{
    CUDA_HOST_NODE_PARAMS params = {.fn = function, .userData = data};

    return capture_add(stream, CU_GRAPH_NODE_TYPE_HOST, set_host, &params);
}

CUresult capture_add_graph(struct stream *stream, CUgraph graph)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_GRAPH, set_graph, graph_find(graph));
}

CUresult capture_add_empty(struct stream *stream)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_EMPTY, NULL, NULL);
}

CUresult capture_add_allocation(struct stream *stream, uint64_t bytes, CUdevice ordinal,
                                CUdeviceptr *address)
{
    const struct graph_request request = {
        .params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}},
                   .bytesize = bytes},
        .address = address,
    };

    return capture_add(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, graph_memory_set_allocation, &request);
}

CUresult capture_add_free(struct stream *stream, CUdeviceptr address)
{
    return capture_add(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, graph_memory_set_freed, &address);
}
