/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c -- graphs and their edges; what nodes do is graphnode.c's. */
#include "cuda/graph.h"

#include <stdlib.h>
#include <string.h>

static _Atomic uint32_t last_graph_id;

struct graph *graph_find(CUgraph handle)
{
    struct graph *graph = (struct graph *) handle;

    if (!graph || (uintptr_t) handle % sizeof(void *) || graph->magic != GRAPH_MAGIC)
        return NULL;
    return graph;
}

struct node *node_find(CUgraphNode handle)
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

static bool has_edge(const struct node *from, const struct node *to)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from)
            return true;
    return false;
}

static bool add_edge(struct node *from, struct node *to)
{
    struct node **grown = realloc(to->before, (to->before_count + 1) * sizeof(struct node *));

    if (!grown)
        return false;
    to->before = grown;
    to->before[to->before_count++] = from;
    return true;
}

static void remove_edge(const struct node *from, struct node *to)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from) {
            to->before[i] = to->before[--to->before_count];
            return;
        }
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

CUresult node_add(struct graph *graph, CUgraphNodeType type, const CUgraphNode *before,
                  size_t count, struct node **node)
{
    REQUIRE(graph && (before || !count));
    for (size_t i = 0; i < count; i++) {
        const struct node *found = node_find(before[i]);
        REQUIRE(found && found->graph == graph);
    }
    *node = append(graph, type);
    if (!*node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (!has_edge(node_find(before[i]), *node) && !add_edge(node_find(before[i]), *node)) {
            node_remove(*node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    return CUDA_SUCCESS;
}

void node_remove(struct node *node)
{
    struct graph *graph = node->graph;
    size_t kept = 0;

    for (size_t i = 0; i < graph->count; i++) {
        remove_edge(node, graph->nodes[i]);
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
        if (!made || node_take_over(made, graph->nodes[i]) != CUDA_SUCCESS) {
            graph_free(copy);
            return NULL;
        }
    }
    for (size_t i = 0; copy && i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++)
            if (!add_edge(copy->nodes[place_of(graph, graph->nodes[i]->before[j])],
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
    REQUIRE(phNode && node_find(hOriginalNode) && graph);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->origin == node_find(hOriginalNode)) {
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
    REQUIRE(node_find(hNode) && type);
    *type = node_find(hNode)->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    ENTER();
    REQUIRE(node_find(hNode) && phGraph);
    *phGraph = (CUgraph) node_find(hNode)->graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetLocalId(CUgraphNode hNode, unsigned int *nodeId)
{
    ENTER();
    REQUIRE(node_find(hNode) && nodeId);
    *nodeId = node_find(hNode)->id;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    ENTER();
    REQUIRE(node_find(hNode));
    if (graph_memory_is_in(node_find(hNode)->graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    node_remove(node_find(hNode));
    return CUDA_SUCCESS;
}

/* Lists are asked for twice: without room to learn how long they are, then with it. Places that
 * are not needed are set to NULL. */
struct list {
    CUgraphNode *first, *second;
    CUgraphEdgeData *data;
    size_t room;
    size_t found;
};

static void list_add(struct list *list, const struct node *first, const struct node *second)
{
    if (list->found < list->room) {
        list->first[list->found] = (CUgraphNode) first;
        if (list->second)
            list->second[list->found] = (CUgraphNode) second;
        if (list->data)
            list->data[list->found] = (CUgraphEdgeData) {0};
    }
    list->found++;
}

static CUresult list_end(const struct list *list, size_t *count)
{
    for (size_t i = list->found; i < list->room; i++) {
        list->first[i] = NULL;
        if (list->second)
            list->second[i] = NULL;
    }
    *count = list->first && list->room < list->found ? list->room : list->found;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(const struct graph *graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    struct list list = {.first = nodes};

    REQUIRE(graph && count);
    list.room = nodes ? *count : 0;
    for (size_t i = 0; i < graph->count; i++)
        if (!roots || !graph->nodes[i]->before_count)
            list_add(&list, graph->nodes[i], NULL);
    return list_end(&list, count);
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    ENTER();
    return list_nodes(graph_find(hGraph), nodes, numNodes, false);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    ENTER();
    return list_nodes(graph_find(hGraph), rootNodes, numRootNodes, true);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edgeData, size_t *numEdges)
{
    struct list list = {.first = from, .second = to, .data = edgeData};
    const struct graph *graph;

    ENTER();
    graph = graph_find(hGraph);
    REQUIRE(graph && numEdges && !from == !to);
    list.room = from ? *numEdges : 0;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++)
            list_add(&list, graph->nodes[i]->before[j], graph->nodes[i]);
    return list_end(&list, numEdges);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    struct list list = {.first = dependencies, .data = edgeData};
    const struct node *node;

    ENTER();
    node = node_find(hNode);
    REQUIRE(node && numDependencies);
    list.room = dependencies ? *numDependencies : 0;
    for (size_t i = 0; i < node->before_count; i++)
        list_add(&list, node->before[i], NULL);
    return list_end(&list, numDependencies);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                    size_t *numDependencies)
{
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                         CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    struct list list = {.first = dependentNodes, .data = edgeData};
    const struct node *node;

    ENTER();
    node = node_find(hNode);
    REQUIRE(node && numDependentNodes);
    list.room = dependentNodes ? *numDependentNodes : 0;
    for (size_t i = 0; i < node->graph->count; i++)
        if (has_edge(node, node->graph->nodes[i]))
            list_add(&list, node->graph->nodes[i], NULL);
    return list_end(&list, numDependentNodes);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                      size_t *numDependentNodes)
{
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

static CUresult change_edges(const struct graph *graph, const CUgraphNode *from,
                             const CUgraphNode *to, size_t count, bool add)
{
    REQUIRE(graph && ((from && to) || !count));
    if (!add && graph_memory_is_in(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        const struct node *first = node_find(from[i]);
        const struct node *second = node_find(to[i]);

        REQUIRE(first && second && first != second && first->graph == graph &&
                second->graph == graph && has_edge(first, second) != add);
    }
    for (size_t i = 0; i < count; i++) {
        if (!add)
            remove_edge(node_find(from[i]), node_find(to[i]));
        else if (!add_edge(node_find(from[i]), node_find(to[i])))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void) edgeData;
    ENTER();
    return change_edges(graph_find(hGraph), from, to, numDependencies, true);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies)
{
    ENTER();
    return change_edges(graph_find(hGraph), from, to, numDependencies, true);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
                                      const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                      size_t numDependencies)
{
    (void) edgeData;
    ENTER();
    return change_edges(graph_find(hGraph), from, to, numDependencies, false);
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies)
{
    ENTER();
    return change_edges(graph_find(hGraph), from, to, numDependencies, false);
}
