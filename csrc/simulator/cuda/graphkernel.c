/* SPDX-License-Identifier: Apache-2.0 */
/* graphkernel.c -- kernel nodes: they keep their own copy of the arguments. */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph.h"

enum { MOST_PARAMETERS = 4096 };

static const void *packed_of(void *const *extra)
{
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            return extra[1];
    return NULL;
}

/* Copy the launch's arguments, with the sizes that the function declares. */
static CUresult keep_arguments(const struct launch *launch, struct kept_arguments *kept)
{
    const unsigned char *packed = packed_of(launch->extra);
    size_t offset, size;
    size_t count = 0;
    size_t bytes = 0;

    *kept = (struct kept_arguments) {0};
    if (!launch->parameters && !packed)
        return CUDA_SUCCESS;
    while (count < MOST_PARAMETERS &&
           cuFuncGetParamInfo(launch->function, count, &offset, &size) == CUDA_SUCCESS) {
        count++;
        if (bytes < offset + size)
            bytes = offset + size;
    }
    kept->pointers = calloc(count + 1, sizeof(void *));
    kept->bytes = calloc(1, bytes + 1);
    if (!kept->pointers || !kept->bytes) {
        free(kept->pointers);
        free(kept->bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        const void *from;

        cuFuncGetParamInfo(launch->function, i, &offset, &size);
        from = packed ? packed + offset : launch->parameters[i];
        if (!from)
            continue;
        memcpy(kept->bytes + offset, from, size);
        kept->pointers[i] = kept->bytes + offset;
    }
    return CUDA_SUCCESS;
}

CUresult graph_kernel_keep_launch(struct node *node, const struct launch *launch)
{
    struct kept_arguments kept;
    CUresult result;

    if (!module_launch_function(launch->function))
        return CUDA_ERROR_INVALID_VALUE;
    result = keep_arguments(launch, &kept);
    if (result != CUDA_SUCCESS)
        return result;
    free(node->kept.pointers);
    free(node->kept.bytes);
    node->kept = kept;
    node->launch = *launch;
    node->launch.parameters = kept.pointers;
    node->launch.extra = NULL;
    return CUDA_SUCCESS;
}

static CUresult set_kernel(struct node *node, const void *argument)
{
    const CUDA_KERNEL_NODE_PARAMS *params = argument;
    struct launch launch = {
        .function = params->func ? params->func : (CUfunction) params->kern,
        .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
        .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
        .shared_bytes = params->sharedMemBytes,
        .parameters = params->kernelParams,
        .extra = params->extra,
    };

    node->context = params->ctx;
    return graph_kernel_keep_launch(node, &launch);
}

/* The first form ends before kern. */
static CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUDA_KERNEL_NODE_PARAMS wide = {0};

    if (params)
        memcpy(&wide, params, sizeof(*params));
    return wide;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_KERNEL, dependencies,
                             numDependencies, set_kernel, nodeParams);
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS wide = widened(nodeParams);

    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_KERNEL, dependencies,
                             numDependencies, set_kernel, nodeParams ? &wide : NULL);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return graph_node_change(__func__, hNode, CU_GRAPH_NODE_TYPE_KERNEL, set_kernel, nodeParams);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS wide = widened(nodeParams);

    return graph_node_change(__func__, hNode, CU_GRAPH_NODE_TYPE_KERNEL, set_kernel,
                             nodeParams ? &wide : NULL);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL, set_kernel,
                                nodeParams);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS wide = widened(nodeParams);

    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL, set_kernel,
                                nodeParams ? &wide : NULL);
}

static CUDA_KERNEL_NODE_PARAMS describe_kernel(const struct node *node)
{
    const struct launch *launch = &node->launch;

    return (CUDA_KERNEL_NODE_PARAMS) {
        .func = launch->function,
        .gridDimX = launch->grid[0],
        .gridDimY = launch->grid[1],
        .gridDimZ = launch->grid[2],
        .blockDimX = launch->block[0],
        .blockDimY = launch->block[1],
        .blockDimZ = launch->block[2],
        .sharedMemBytes = launch->shared_bytes,
        .kernelParams = launch->parameters,
        .ctx = node->context,
    };
}

NODE_READER(cuGraphKernelNodeGetParams_v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS *,
            describe_kernel(node))

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS wide;
    const struct node *node;

    ENTER();
    node = graph_node_of_type(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    REQUIRE(node && nodeParams);
    wide = describe_kernel(node);
    memcpy(nodeParams, &wide, sizeof(*nodeParams));
    return CUDA_SUCCESS;
}
