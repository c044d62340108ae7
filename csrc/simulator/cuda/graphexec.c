/* SPDX-License-Identifier: Apache-2.0 */
/* graphexec.c -- executable graphs: instantiation, launch, update. */
#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/event.h"
#include "cuda/graph.h"

static struct executable *find(CUgraphExec handle)
{
    struct executable *executable = (struct executable *) handle;

    if (!executable || (uintptr_t) handle % sizeof(void *) || executable->magic != EXEC_MAGIC)
        return NULL;
    return executable;
}

static void free_executable(struct executable *executable)
{
    if (executable->graph)
        graph_free(executable->graph);
    free(executable->order);
    executable->magic = 0;
    free(executable);
}

static CUresult instantiate(CUgraphExec *handle, CUgraph source, unsigned long long flags)
{
    const struct graph *graph = graph_find(source);
    struct executable *executable;
    CUresult result;

    REQUIRE(handle && graph && !graph->is_owned);
    executable = calloc(1, sizeof(*executable));
    if (!executable)
        return CUDA_ERROR_OUT_OF_MEMORY;
    executable->magic = EXEC_MAGIC;
    executable->flags = flags;
    executable->graph = graph_copy(graph);
    if (!executable->graph) {
        free_executable(executable);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    executable->order = graph_order(executable->graph);
    result =
        executable->order ? graph_memory_instantiate(executable->graph) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        free_executable(executable);
    else
        *handle = (CUgraphExec) executable;
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                     unsigned long long flags)
{
    ENTER();
    return instantiate(phGraphExec, hGraph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                               char *logBuffer, size_t bufferSize)
{
    ENTER();
    if (phErrorNode)
        *phErrorNode = NULL;
    if (logBuffer && bufferSize)
        *logBuffer = '\0';
    return instantiate(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                            char *logBuffer, size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

static CUresult upload(CUgraphExec handle)
{
    REQUIRE(find(handle));
    return graph_memory_upload(find(handle)->graph);
}

static CUresult instantiate_with(CUgraphExec *handle, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult result;

    REQUIRE(params);
    result = instantiate(handle, graph, params->flags);
    if (result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        result = upload(*handle);
    params->hErrNode_out = NULL;
    params->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    ENTER();
    return instantiate_with(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    ENTER();
    return instantiate_with(phGraphExec, hGraph, instantiateParams);
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    ENTER();
    REQUIRE(find(hGraphExec) && flags);
    *flags = find(hGraphExec)->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct executable *executable;

    ENTER();
    executable = find(hGraphExec);
    REQUIRE(executable);
    graph_memory_retire(executable->graph);
    free_executable(executable);
    return CUDA_SUCCESS;
}

/* --- launching ------------------------------------------------------------------------------ */

static CUresult submit_graph(struct stream *stream, struct node *const *order, size_t count);

static CUresult submit_child(struct stream *stream, const struct graph *graph)
{
    struct node **order = graph_order(graph);
    CUresult result = order ? submit_graph(stream, order, graph->count) : CUDA_ERROR_INVALID_VALUE;

    free(order);
    return result;
}

static CUresult submit_node(struct stream *stream, const struct node *node)
{
    struct event *event;

    switch ((int) node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return launch_submit(stream, &node->launch);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return node->is_captured ? transfer_submit(stream, &node->transfer, TRANSFER_ORDERED)
                                 : copy_submit_3d(stream, &node->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return fill_submit(stream, &node->fill);
    case CU_GRAPH_NODE_TYPE_HOST:
        return hostcall_submit(stream, node->host.fn, node->host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return submit_child(stream, node->child);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        event = event_find(node->event);
        return event ? event_record(event, stream) : CUDA_ERROR_INVALID_HANDLE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        event = event_find(node->event);
        if (!event)
            return CUDA_ERROR_INVALID_HANDLE;
        return event->is_recorded ? gate_wait(stream, &event->moment) : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_memory_free(stream, node->memory);
    default: /* empty nodes; allocations, which are made when the launch begins */
        return CUDA_SUCCESS;
    }
}

static CUresult submit_graph(struct stream *stream, struct node *const *order, size_t count)
{
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (!order[i]->is_disabled)
            result = submit_node(stream, order[i]);
    return result;
}

static CUresult launch(struct stream *stream, CUgraphExec handle)
{
    const struct executable *executable = find(handle);
    CUresult result;

    REQUIRE(executable);
    if (stream->capture)
        return capture_add_graph(stream, (CUgraph) executable->graph);
    result =
        graph_memory_launch(stream, executable->graph,
                            executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    if (result != CUDA_SUCCESS)
        return result;
    return submit_graph(stream, executable->order, executable->graph->count);
}

STREAM_CALL(cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream), launch(stream, hGraphExec))
STREAM_CALL(cuGraphUpload, (CUgraphExec hGraphExec, CUstream hStream), upload(hGraphExec))

/* --- changing ------------------------------------------------------------------------------- */

static struct node *find_copy(const struct executable *executable, CUgraphNode handle)
{
    const struct node *origin = graph_find_node(handle);

    for (size_t i = 0; executable && origin && i < executable->graph->count; i++)
        if (executable->graph->nodes[i]->origin == origin)
            return executable->graph->nodes[i];
    return NULL;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    struct node *node;

    ENTER();
    node = find_copy(find(hGraphExec), hNode);
    REQUIRE(node);
    node->is_disabled = !isEnabled;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    const struct node *node;

    ENTER();
    node = find_copy(find(hGraphExec), hNode);
    REQUIRE(node && isEnabled);
    *isEnabled = !node->is_disabled;
    return CUDA_SUCCESS;
}

/* The first node of graph that differs from the executable's in its place; NULL if none does. */
static struct node *first_difference(const struct executable *executable, const struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        if (i >= executable->graph->count ||
            executable->graph->nodes[i]->type != graph->nodes[i]->type ||
            executable->graph->nodes[i]->before_count != graph->nodes[i]->before_count)
            return graph->nodes[i];
    return NULL;
}

/* The first node of graph whose memory, or its child's, differs from that of the node in its place:
 * the allocations of an executable graph cannot change.
 */
static struct node *first_with_other_memory(const struct graph *now, const struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        const struct graph *child = graph->nodes[i]->child;
        const struct graph *child_now = now->nodes[i]->child;

        if (graph->nodes[i]->memory != now->nodes[i]->memory)
            return graph->nodes[i];
        if (child && (graph_memory_is_in(child) || graph_memory_is_in(child_now)) &&
            (child->count != child_now->count || first_with_other_memory(child_now, child)))
            return graph->nodes[i];
    }
    return NULL;
}

static CUresult bring_up_to_date(CUgraphExec handle, CUgraph source,
                                 CUgraphExecUpdateResultInfo *info)
{
    const struct executable *executable = find(handle);
    const struct graph *graph = graph_find(source);
    struct node *different;

    REQUIRE(executable && graph && info);
    *info = (CUgraphExecUpdateResultInfo) {.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    different = first_difference(executable, graph);
    if (different || graph->count != executable->graph->count) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        info->errorNode = (CUgraphNode) different;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    different = first_with_other_memory(executable->graph, graph);
    if (different) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        info->errorNode = (CUgraphNode) different;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < graph->count; i++) {
        CUresult result = graph_node_take_over(executable->graph->nodes[i], graph->nodes[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo *resultInfo)
{
    ENTER();
    return bring_up_to_date(hGraphExec, hGraph, resultInfo);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result;

    ENTER();
    REQUIRE(updateResult_out);
    result = bring_up_to_date(hGraphExec, hGraph, &info);
    if (hErrorNode_out)
        *hErrorNode_out = info.errorNode;
    *updateResult_out = info.result;
    return result;
}
