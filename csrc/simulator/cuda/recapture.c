/* SPDX-License-Identifier: Apache-2.0 */
/* recapture.c -- captures into a graph that has its nodes already. */
#include "cuda/capture_parts.h"

#include <string.h>

#include "cuda/graphmemory.h"

static bool stands_behind(const struct node *node, const struct tails *behind)
{
    size_t found = 0;

    for (size_t i = 0; i < behind->count; i++)
        found += graph_edge_exists(graph_find_node(behind->nodes[i]), node);
    return found == behind->count && node->before_count == behind->count;
}

static bool is_same_launch(const struct node *one, const struct node *other)
{
    size_t offset, size;

    if (one->launch.function != other->launch.function ||
        memcmp(one->launch.grid, other->launch.grid, sizeof(one->launch.grid)) != 0 ||
        memcmp(one->launch.block, other->launch.block, sizeof(one->launch.block)) != 0 ||
        one->launch.shared_bytes != other->launch.shared_bytes ||
        !one->kept.bytes != !other->kept.bytes)
        return false;
    for (size_t i = 0; one->kept.bytes &&
                       cuFuncGetParamInfo(one->launch.function, i, &offset, &size) == CUDA_SUCCESS;
         i++)
        if (memcmp(one->kept.bytes + offset, other->kept.bytes + offset, size) != 0)
            return false;
    return true;
}

static bool is_same(const struct node *one, const struct node *other)
{
    switch ((int) one->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return is_same_launch(one, other);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return memcmp(&one->transfer, &other->transfer, sizeof(one->transfer)) == 0;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return memcmp(&one->fill, &other->fill, sizeof(one->fill)) == 0;
    case CU_GRAPH_NODE_TYPE_HOST:
        return one->host.fn == other->host.fn && one->host.userData == other->host.userData;
    default:
        return true;
    }
}

static CUgraphNodeParams describe(struct node *node)
{
    CUgraphNode handle = (CUgraphNode) node;
    CUgraphNodeParams params = {.type = node->type};

    switch ((int) node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        cuGraphKernelNodeGetParams_v2(handle, (CUDA_KERNEL_NODE_PARAMS *) &params.kernel);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        cuGraphMemcpyNodeGetParams(handle, &params.memcpy.copyParams);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        cuGraphMemsetNodeGetParams(handle, (CUDA_MEMSET_NODE_PARAMS *) &params.memset);
        break;
    default:
        params.host.fn = node->host.fn;
        params.host.userData = node->host.userData;
        break;
    }
    return params;
}

static CUresult tell(const struct recapture *again, struct node *node, struct node *now)
{
    CUgraphNodeParams before, after;

    if (!again->callback || is_same(node, now))
        return CUDA_SUCCESS;
    before = describe(node);
    after = describe(now);
    return again->callback(again->data, (CUgraphNode) node, &before, &after,
                           CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE);
}

/* Memory must have the same parameters; it keeps its address. */
static bool is_same_memory(const struct node *node, const void *argument)
{
    const struct graph_request *request = argument;

    if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return *(const CUdeviceptr *) argument == node->freed;
    if (request->params.bytesize != node->allocation.bytesize)
        return false;
    *request->address = node->allocation.dptr;
    return true;
}

static CUresult become(const struct recapture *again, struct node *node, graph_node_set *set,
                       const void *argument)
{
    struct graph *apart = graph_make();
    struct node *now;
    CUresult result =
        apart ? graph_add_node(apart, node->type, NULL, 0, &now) : CUDA_ERROR_OUT_OF_MEMORY;

    if (result == CUDA_SUCCESS)
        result = set(now, argument);
    if (result == CUDA_SUCCESS)
        result = tell(again, node, now);
    if (result == CUDA_SUCCESS)
        result = graph_node_take_over(node, now);
    if (apart)
        graph_free(apart);
    return result;
}

CUresult recapture_node(struct session *session, CUgraphNodeType type, const struct tails *behind,
                        graph_node_set *set, const void *argument, struct node **node)
{
    struct recapture *again = &session->again;
    CUresult result = CUDA_SUCCESS;

    *node = again->next < session->graph->count ? session->graph->nodes[again->next++] : NULL;
    if (!*node || (*node)->type != type || !stands_behind(*node, behind))
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        result =
            is_same_memory(*node, argument) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (set)
        result = become(again, *node, set, argument);
    session->is_spoilt |= result != CUDA_SUCCESS;
    return result;
}

bool recapture_is_whole(const struct session *session)
{
    return !session->is_again || session->again.next == session->graph->count;
}
