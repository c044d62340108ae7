/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c -- graphs and their copies; the node types are in graphnode.c. */
#include "cuda/graph.h"

#include <stdlib.h>

static _Atomic uint32_t last_graph_id;

struct graph *graph_find(CUgraph handle)
{
    struct graph *graph = (struct graph *) handle;

    if (!graph || (uintptr_t) handle % sizeof(void *) || graph->magic != GRAPH_MAGIC)
        return NULL;
    return graph;
}

struct node *graph_find_node(CUgraphNode handle)
{
    struct node *node = (struct node *) handle;

    if (!node || (uintptr_t) handle % sizeof(void *) || node->magic != NODE_MAGIC)
        return NULL;
    return node;
}

struct graph *graph_make(void)
{
    struct graph *graph = calloc(1, sizeof(*graph));

    if (graph) {
        graph->magic = GRAPH_MAGIC;
        graph->id = atomic_fetch_add(&last_graph_id, 1) + 1;
    }
    return graph;
}

static void free_node(struct node *node)
{
    free(node->kept.pointers);
    free(node->kept.bytes);
    free(node->before);
    if (node->child)
        graph_free(node->child);
    graph_memory_drop(node->memory);
    node->magic = 0;
    free(node);
}

void graph_free(struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        free_node(graph->nodes[i]);
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
}

static struct node *append(struct graph *graph, CUgraphNodeType type)
{
    struct node *node = calloc(1, sizeof(*node));

    if (node && graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? 2 * graph->capacity : 16;
        struct node **grown = realloc(graph->nodes, capacity * sizeof(struct node *));

        if (!grown) {
            free(node);
            return NULL;
        }
        graph->nodes = grown;
        graph->capacity = capacity;
    }
    if (node) {
        node->magic = NODE_MAGIC;
        node->type = type;
        node->graph = graph;
        node->id = ++graph->last_node_id;
        graph->nodes[graph->count++] = node;
    }
    return node;
}

CUresult graph_add_node(struct graph *graph, CUgraphNodeType type, const CUgraphNode *before,
                        size_t count, struct node **node)
{
    REQUIRE(graph && (before || !count));
    for (size_t i = 0; i < count; i++) {
        const struct node *found = graph_find_node(before[i]);
        REQUIRE(found && found->graph == graph);
    }
    *node = append(graph, type);
    if (!*node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (!graph_edge_exists(graph_find_node(before[i]), *node) &&
            !graph_edge_add(graph_find_node(before[i]), *node)) {
            graph_remove_node(*node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    return CUDA_SUCCESS;
}

void graph_remove_node(struct node *node)
{
    struct graph *graph = node->graph;
    size_t kept = 0;

    for (size_t i = 0; i < graph->count; i++) {
        graph_edge_remove(node, graph->nodes[i]);
        if (graph->nodes[i] != node)
            graph->nodes[kept++] = graph->nodes[i];
    }
    graph->count = kept;
    free_node(node);
}

static size_t place_of(const struct graph *graph, const struct node *node)
{
    size_t place = 0;

    while (graph->nodes[place] != node)
        place++;
    return place;
}

struct graph *graph_copy(const struct graph *graph)
{
    struct graph *copy = graph_make();

    for (size_t i = 0; copy && i < graph->count; i++) {
        struct node *made = append(copy, graph->nodes[i]->type);

        if (made) {
            made->origin = graph->nodes[i];
            made->id = graph->nodes[i]->id;
        }
        if (!made || graph_node_take_over(made, graph->nodes[i]) != CUDA_SUCCESS) {
            graph_free(copy);
            return NULL;
        }
    }
    for (size_t i = 0; copy && i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++)
            if (!graph_edge_add(copy->nodes[place_of(graph, graph->nodes[i]->before[j])],
                                copy->nodes[i])) {
                graph_free(copy);
                return NULL;
            }
    return copy;
}

struct node **graph_order(const struct graph *graph)
{
    struct node **order = malloc((graph->count + 1) * sizeof(struct node *));
    bool *done = calloc(graph->count + 1, sizeof(bool));
    size_t placed = 0;
    bool progress = true;

    while (order && done && placed < graph->count && progress) {
        progress = false;
        for (size_t i = 0; i < graph->count; i++) {
            bool ready = !done[i];
            for (size_t j = 0; ready && j < graph->nodes[i]->before_count; j++)
                ready = done[place_of(graph, graph->nodes[i]->before[j])];
            if (!ready)
                continue;
            order[placed++] = graph->nodes[i];
            done[i] = progress = true;
        }
    }
    free(done);
    if (order && placed < graph->count) {
        free(order);
        return NULL;
    }
    return order;
}

/* --- the API ---------------------------------------------------------------------------------- */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    struct graph *graph;

    ENTER();
    REQUIRE(phGraph && !flags);
    graph = graph_make();
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraph = (CUgraph) graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph)
{
    struct graph *graph;

    ENTER();
    graph = graph_find(hGraph);
    REQUIRE(graph && !graph->is_owned);
    graph_free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    struct graph *copy;

    ENTER();
    REQUIRE(phGraphClone && graph_find(originalGraph));
    if (graph_memory_is_in(graph_find(originalGraph)))
        return CUDA_ERROR_NOT_SUPPORTED;
    copy = graph_copy(graph_find(originalGraph));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraphClone = (CUgraph) copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph)
{
    const struct graph *graph;

    ENTER();
    graph = graph_find(hClonedGraph);
    REQUIRE(phNode && graph_find_node(hOriginalNode) && graph);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->origin == graph_find_node(hOriginalNode)) {
            *phNode = (CUgraphNode) graph->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphGetId(CUgraph hGraph, unsigned int *graphId)
{
    ENTER();
    REQUIRE(graph_find(hGraph) && graphId);
    *graphId = graph_find(hGraph)->id;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    ENTER();
    REQUIRE(graph_find_node(hNode) && type);
    *type = graph_find_node(hNode)->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    ENTER();
    REQUIRE(graph_find_node(hNode) && phGraph);
    *phGraph = (CUgraph) graph_find_node(hNode)->graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetLocalId(CUgraphNode hNode, unsigned int *nodeId)
{
    ENTER();
    REQUIRE(graph_find_node(hNode) && nodeId);
    *nodeId = graph_find_node(hNode)->id;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    ENTER();
    REQUIRE(graph_find_node(hNode));
    if (graph_memory_is_in(graph_find_node(hNode)->graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    graph_remove_node(graph_find_node(hNode));
    return CUDA_SUCCESS;
}
