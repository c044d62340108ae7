/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h -- graphs: nodes, their parameters and dependencies.
 *
 * A graph is edited; an executable graph is a copy with its nodes in an order of execution. It is
 * launched as a series in the stream: nodes of one graph do not overlap.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_GRAPH_H
#define PYVGPU_SIMULATOR_CUDA_GRAPH_H

#include "cuda/fill.h"
#include "cuda/graphmemory.h"
#include "cuda/launch.h"
#include "cuda/transfer.h"

enum { GRAPH_MAGIC = 0x67726170, NODE_MAGIC = 0x6e6f6465, EXEC_MAGIC = 0x65786563 };

struct graph;

/* A copy of a kernel's arguments: the program's own may be gone at the launch. */
struct kept_arguments {
    void **pointers; /* into bytes */
    unsigned char *bytes;
};

struct node {
    uint32_t magic;
    CUgraphNodeType type;
    struct graph *graph;
    uint32_t id;
    bool is_disabled;
    struct node *origin;  /* in a copy: what it is a copy of */
    struct node **before; /* its dependencies */
    size_t before_count;
    /* By type. */
    struct launch launch;
    struct kept_arguments kept;
    CUcontext context;
    bool is_captured; /* a copy that has only its struct transfer */
    struct transfer transfer;
    CUDA_MEMCPY3D copy;
    struct fill fill;
    CUDA_HOST_NODE_PARAMS host;
    struct graph *child;
    CUevent event;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    struct graph_memory *memory; /* that it allocates or frees */
    CUdeviceptr freed;
};

struct graph {
    uint32_t magic;
    uint32_t id;
    uint32_t last_node_id;
    bool is_owned; /* by a node: not for cuGraphDestroy */
    struct node **nodes;
    size_t count;
    size_t capacity;
};

struct executable {
    uint32_t magic;
    struct graph *graph;
    struct node **order;
    unsigned long long flags;
};

struct graph *graph_find(CUgraph handle);
struct node *graph_find_node(CUgraphNode handle);

struct graph *graph_make(void);
void graph_free(struct graph *graph);

/* A copy, each node with its origin; NULL if there is no memory. */
struct graph *graph_copy(const struct graph *graph);

/* A new node after those given. INVALID_VALUE unless they are of this graph. */
CUresult graph_add_node(struct graph *graph, CUgraphNodeType type, const CUgraphNode *before,
                        size_t count, struct node **node);
void graph_remove_node(struct node *node);

/* Edges, between nodes of one graph; add is false without memory. */
bool graph_edge_exists(const struct node *from, const struct node *to);
bool graph_edge_add(struct node *from, struct node *to);
void graph_edge_remove(const struct node *from, struct node *to);

typedef CUresult graph_node_set(struct node *node, const void *argument);

/* Enter the call of that name, add a node and set it; undone if set refuses. */
CUresult graph_node_create(const char *name, CUgraphNode *handle, CUgraph graph,
                           CUgraphNodeType type, const CUgraphNode *before, size_t count,
                           graph_node_set *set, const void *argument);

/* Enter, and set a node of the type: in its graph, or in an executable one. */
CUresult graph_node_change(const char *name, CUgraphNode handle, CUgraphNodeType type,
                           graph_node_set *set, const void *argument);
CUresult graph_node_change_in(const char *name, CUgraphExec in, CUgraphNode handle,
                              CUgraphNodeType type, graph_node_set *set, const void *argument);

/* The node behind a handle if it is of the type, or NULL. */
struct node *graph_node_of_type(CUgraphNode handle, CUgraphNodeType type);

/* symbol(hNode, out): reads a value of a node of the type, by an expression. */
#define NODE_READER(symbol, TYPE, out_type, what)    \
    CUresult symbol(CUgraphNode hNode, out_type out) \
    {                                                \
        const struct node *node;                     \
        ENTER();                                     \
        node = graph_node_of_type(hNode, TYPE);      \
        REQUIRE(node && out);                        \
        *out = what;                                 \
        return CUDA_SUCCESS;                         \
    }

/* Store a launch and its arguments in the node. */
CUresult graph_kernel_keep_launch(struct node *node, const struct launch *launch);

/* The nodes in topological order; NULL: there is a cycle. */
struct node **graph_order(const struct graph *graph);

/* Take over the parameters of a node of the same type. */
CUresult graph_node_take_over(struct node *to, const struct node *from);

#endif
