/* SPDX-License-Identifier: Apache-2.0 */
/* graphnode.c -- node types: create, read and set their parameters. */
#include <stdlib.h>
#include <string.h>

#include "cuda/event.h"
#include "cuda/graph.h"

CUresult graph_node_take_over(struct node *to, const struct node *from)
{
    struct graph *child = NULL;
    CUresult result = CUDA_SUCCESS;

    if (to->type != from->type)
        return CUDA_ERROR_INVALID_VALUE;
    if (from->type == CU_GRAPH_NODE_TYPE_KERNEL)
        result = graph_kernel_keep_launch(to, &from->launch);
    if (from->child) {
        child = graph_copy(from->child);
        if (!child)
            return CUDA_ERROR_OUT_OF_MEMORY;
        child->is_owned = true;
        if (to->child)
            graph_free(to->child);
        to->child = child;
    }
    to->context = from->context;
    to->is_captured = from->is_captured;
    to->transfer = from->transfer;
    to->copy = from->copy;
    to->fill = from->fill;
    to->host = from->host;
    to->event = from->event;
    to->allocation = from->allocation;
    if (!to->memory)
        to->memory = graph_memory_keep(from->memory);
    to->freed = from->freed;
    return result;
}

CUresult graph_node_create(const char *name, CUgraphNode *handle, CUgraph graph,
                           CUgraphNodeType type, const CUgraphNode *before, size_t count,
                           graph_node_set *set, const void *argument)
{
    PROCESS_CALL(this_call);
    struct node *node;
    CUresult result = process_enter(name, &this_call);

    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(handle && (!set || argument));
    result = graph_add_node(graph_find(graph), type, before, count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    if (set)
        result = set(node, argument);
    if (result != CUDA_SUCCESS)
        graph_remove_node(node);
    else
        *handle = (CUgraphNode) node;
    return result;
}

CUresult graph_node_change(const char *name, CUgraphNode handle, CUgraphNodeType type,
                           graph_node_set *set, const void *argument)
{
    PROCESS_CALL(this_call);
    struct node *node = graph_find_node(handle);
    CUresult result = process_enter(name, &this_call);

    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(node && argument && node->type == type);
    return set(node, argument);
}

CUresult graph_node_change_in(const char *name, CUgraphExec in, CUgraphNode handle,
                              CUgraphNodeType type, graph_node_set *set, const void *argument)
{
    PROCESS_CALL(this_call);
    struct executable *executable = (struct executable *) in;
    struct node *node = graph_find_node(handle);
    CUresult result = process_enter(name, &this_call);

    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(executable && node && argument && node->type == type);
    REQUIRE(executable->magic == EXEC_MAGIC);
    for (size_t i = 0; i < executable->graph->count; i++)
        if (executable->graph->nodes[i]->origin == node)
            return set(executable->graph->nodes[i], argument);
    return CUDA_ERROR_INVALID_VALUE;
}

struct node *graph_node_of_type(CUgraphNode handle, CUgraphNodeType type)
{
    struct node *node = graph_find_node(handle);

    return node && node->type == type ? node : NULL;
}

/* --- copies and sets ----------------------------------------------------------------------------
 */

static CUresult set_copy(struct node *node, const void *argument)
{
    node->copy = *(const CUDA_MEMCPY3D *) argument;
    node->is_captured = false;
    return CUDA_SUCCESS;
}

static CUresult set_fill(struct node *node, const void *argument)
{
    const CUDA_MEMSET_NODE_PARAMS *params = argument;

    REQUIRE(params->elementSize == 1 || params->elementSize == 2 || params->elementSize == 4);
    node->fill = (struct fill) {
        .address = params->dst,
        .pitch = params->pitch,
        .value = params->value,
        .element = params->elementSize,
        .width = params->width,
        .height = params->height ? params->height : 1,
    };
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    (void) ctx;
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMCPY, dependencies,
                             numDependencies, set_copy, copyParams);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    return graph_node_change(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMCPY, set_copy, nodeParams);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    (void) ctx;
    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMCPY, set_copy,
                                copyParams);
}

static CUDA_MEMCPY3D describe_copy(const struct node *node)
{
    const struct transfer *transfer = &node->transfer;

    if (!node->is_captured)
        return node->copy;
    return (CUDA_MEMCPY3D) {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = transfer->from.address,
        .srcPitch = transfer->from.pitch,
        .srcHeight = transfer->height,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = transfer->to.address,
        .dstPitch = transfer->to.pitch,
        .dstHeight = transfer->height,
        .WidthInBytes = transfer->width,
        .Height = transfer->height,
        .Depth = transfer->depth,
    };
}

NODE_READER(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D *,
            describe_copy(node))

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    (void) ctx;
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMSET, dependencies,
                             numDependencies, set_fill, memsetParams);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    return graph_node_change(__func__, hNode, CU_GRAPH_NODE_TYPE_MEMSET, set_fill, nodeParams);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    (void) ctx;
    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMSET, set_fill,
                                memsetParams);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    const struct node *node;

    ENTER();
    node = graph_node_of_type(hNode, CU_GRAPH_NODE_TYPE_MEMSET);
    REQUIRE(node && nodeParams);
    *nodeParams = (CUDA_MEMSET_NODE_PARAMS) {
        .dst = node->fill.address,
        .pitch = node->fill.pitch,
        .value = (unsigned int) node->fill.value,
        .elementSize = (unsigned int) node->fill.element,
        .width = node->fill.width,
        .height = node->fill.height,
    };
    return CUDA_SUCCESS;
}

/* --- host functions, child graphs, events, empty nodes ------------------------------------------
 */

static CUresult set_host(struct node *node, const void *argument)
{
    node->host = *(const CUDA_HOST_NODE_PARAMS *) argument;
    return node->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_child(struct node *node, const void *argument)
{
    struct graph *copy;

    if (graph_memory_is_in(argument))
        return CUDA_ERROR_NOT_SUPPORTED;
    copy = graph_copy(argument);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy->is_owned = true;
    if (node->child)
        graph_free(node->child);
    node->child = copy;
    return CUDA_SUCCESS;
}

/* The graph itself becomes the child and is no longer the program's. */
static CUresult set_moved_child(struct node *node, const void *argument)
{
    struct graph *graph = (struct graph *) (uintptr_t) argument;

    REQUIRE(!graph->is_owned && graph != node->graph);
    graph->is_owned = true;
    node->child = graph;
    return CUDA_SUCCESS;
}

static CUresult set_event(struct node *node, const void *argument)
{
    node->event = (CUevent) (uintptr_t) argument;
    return event_find(node->event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                            const CUgraphNode *dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_HOST, dependencies,
                             numDependencies, set_host, nodeParams);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return graph_node_change(__func__, hNode, CU_GRAPH_NODE_TYPE_HOST, set_host, nodeParams);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_HOST, set_host,
                                nodeParams);
}

NODE_READER(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS *, node->host)

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  CUgraph childGraph)
{
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_GRAPH, dependencies,
                             numDependencies, set_child, graph_find(childGraph));
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUgraph childGraph)
{
    return graph_node_change_in(__func__, hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH, set_child,
                                graph_find(childGraph));
}

NODE_READER(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph *,
            (CUgraph) node->child)

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies)
{
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_EMPTY, dependencies,
                             numDependencies, NULL, NULL);
}

#define EVENT_NODES(What, TYPE)                                                                   \
    CUresult cuGraphAddEvent##What##Node(CUgraphNode *phGraphNode, CUgraph hGraph,                \
                                         const CUgraphNode *dependencies, size_t numDependencies, \
                                         CUevent event)                                           \
    {                                                                                             \
        return graph_node_create(__func__, phGraphNode, hGraph, TYPE, dependencies,               \
                                 numDependencies, set_event, event);                              \
    }                                                                                             \
    CUresult cuGraphEvent##What##NodeSetEvent(CUgraphNode hNode, CUevent event)                   \
    {                                                                                             \
        return graph_node_change(__func__, hNode, TYPE, set_event, event);                        \
    }                                                                                             \
    CUresult cuGraphExecEvent##What##NodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,      \
                                                  CUevent event)                                  \
    {                                                                                             \
        return graph_node_change_in(__func__, hGraphExec, hNode, TYPE, set_event, event);         \
    }                                                                                             \
    NODE_READER(cuGraphEvent##What##NodeGetEvent, TYPE, CUevent *, node->event)

EVENT_NODES(Record, CU_GRAPH_NODE_TYPE_EVENT_RECORD)
EVENT_NODES(Wait, CU_GRAPH_NODE_TYPE_WAIT_EVENT)

/* --- any type ------------------------------------------------------------------------------- */

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUresult result;

    (void) dependencyData;
    ENTER();
    REQUIRE(nodeParams);
    switch ((int) nodeParams->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies,
                                       (const CUDA_KERNEL_NODE_PARAMS *) &nodeParams->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies,
                                    &nodeParams->memcpy.copyParams, nodeParams->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies,
                                    (const CUDA_MEMSET_NODE_PARAMS *) &nodeParams->memset, NULL);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphAddHostNode(phGraphNode, hGraph, dependencies, numDependencies,
                                  &(CUDA_HOST_NODE_PARAMS) {.fn = nodeParams->host.fn,
                                                            .userData = nodeParams->host.userData});
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (nodeParams->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
            return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_GRAPH,
                                     dependencies, numDependencies, set_moved_child,
                                     graph_find(nodeParams->graph.graph));
        return cuGraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies,
                                        nodeParams->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(phGraphNode, hGraph, dependencies, numDependencies);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(phGraphNode, hGraph, dependencies, numDependencies,
                                         nodeParams->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(phGraphNode, hGraph, dependencies, numDependencies,
                                       nodeParams->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        memcpy(&allocation, &nodeParams->alloc, sizeof(allocation));
        result =
            cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, &allocation);
        nodeParams->alloc.dptr = allocation.dptr;
        return result;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(phGraphNode, hGraph, dependencies, numDependencies,
                                     nodeParams->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                        size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}
