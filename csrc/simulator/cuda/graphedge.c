/* SPDX-License-Identifier: Apache-2.0 */
/* graphedge.c -- edges of graphs, and lists of nodes and edges for programs. */
#include <stdlib.h>

#include "cuda/graph.h"

bool graph_edge_exists(const struct node *from, const struct node *to)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from)
            return true;
    return false;
}

bool graph_edge_add(struct node *from, struct node *to)
{
    struct node **grown = realloc(to->before, (to->before_count + 1) * sizeof(struct node *));

    if (!grown)
        return false;
    to->before = grown;
    to->before[to->before_count++] = from;
    return true;
}

void graph_edge_remove(const struct node *from, struct node *to)
{
    for (size_t i = 0; i < to->before_count; i++)
        if (to->before[i] == from) {
            to->before[i] = to->before[--to->before_count];
            return;
        }
}

/* Programs fetch a list twice: without an array for its length, then with one. Unused elements are
 * set to NULL. */
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
    node = graph_find_node(hNode);
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
    node = graph_find_node(hNode);
    REQUIRE(node && numDependentNodes);
    list.room = dependentNodes ? *numDependentNodes : 0;
    for (size_t i = 0; i < node->graph->count; i++)
        if (graph_edge_exists(node, node->graph->nodes[i]))
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
        const struct node *first = graph_find_node(from[i]);
        const struct node *second = graph_find_node(to[i]);

        REQUIRE(first && second && first != second && first->graph == graph &&
                second->graph == graph && graph_edge_exists(first, second) != add);
    }
    for (size_t i = 0; i < count; i++) {
        if (!add)
            graph_edge_remove(graph_find_node(from[i]), graph_find_node(to[i]));
        else if (!graph_edge_add(graph_find_node(from[i]), graph_find_node(to[i])))
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
