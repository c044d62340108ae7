/* SPDX-License-Identifier: Apache-2.0 */
/* graphmemory.c -- memory nodes: allocations and frees of graphs, and their lifetime. */
#include "cuda/graphmemory.h"

#include <stdlib.h>

#include "cuda/graph.h"
#include "cuda/reserve.h"
#include "memory.h"

struct graph_memory {
    CUdeviceptr address;
    uint64_t bytes;
    uint32_t device;
    unsigned int references; /* nodes, and holds */
    unsigned int holds;      /* launches whose memory is not freed yet on the device */
    bool is_live;            /* allocated and not freed, in the order of the calls */
    bool is_instantiated;
    const struct graph *freed_by; /* the graph that has a free node for it; never dereferenced */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reserve reserves[CONFIG_DEVICES];

/* Lock held, as for what follows. */
static struct reserve *reserve_of(uint32_t device)
{
    reserves[device].device = device;
    return &reserves[device];
}

static void drop(struct graph_memory *memory)
{
    if (--memory->references)
        return;
    memory_free(memory->address, MEMORY_GRAPH);
    free(memory);
}

static bool hold(struct graph_memory *memory)
{
    if (!memory->holds && !reserve_use(reserve_of(memory->device), memory->bytes))
        return false;
    memory->holds++;
    memory->references++;
    return true;
}

static void let_go(struct graph_memory *memory)
{
    if (--memory->holds == 0)
        reserve_unuse(reserve_of(memory->device), memory->bytes);
    drop(memory);
}

struct graph_memory *graph_memory_keep(struct graph_memory *memory)
{
    pthread_mutex_lock(&lock);
    if (memory)
        memory->references++;
    pthread_mutex_unlock(&lock);
    return memory;
}

void graph_memory_drop(struct graph_memory *memory)
{
    pthread_mutex_lock(&lock);
    if (memory)
        drop(memory);
    pthread_mutex_unlock(&lock);
}

/* --- nodes ------------------------------------------------------------------------------------ */

CUresult graph_memory_set_allocation(struct node *node, const void *argument)
{
    const struct graph_request *request = argument;
    const CUmemPoolProps *props = &request->params.poolProps;
    int device = process_device(props->location.id);
    struct graph_memory *memory;
    CUresult result;

    REQUIRE(request->params.bytesize && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
            props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && device >= 0 &&
            props->handleTypes == CU_MEM_HANDLE_TYPE_NONE);
    memory = calloc(1, sizeof(*memory));
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->references = 1;
    memory->device = (uint32_t) device;
    memory->bytes = reserve_round(request->params.bytesize);
    result = memory_allocate_on(memory->device, MEMORY_GRAPH, request->params.bytesize,
                                &memory->address);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    memory_set_owner(memory->address, memory);
    node->memory = memory;
    node->allocation = request->params;
    node->allocation.dptr = *request->address = memory->address;
    return CUDA_SUCCESS;
}

CUresult graph_memory_set_freed(struct node *node, const void *argument)
{
    CUdeviceptr address = *(const CUdeviceptr *) argument;
    struct graph_memory *memory;

    pthread_mutex_lock(&lock);
    memory = memory_owner(address, MEMORY_GRAPH);
    if (memory && !memory->freed_by) {
        memory->freed_by = node->graph;
        memory->references++;
        node->memory = memory;
        node->freed = address;
    } else {
        memory = NULL;
    }
    pthread_mutex_unlock(&lock);
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool graph_memory_is_in(const struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->memory ||
            (graph->nodes[i]->child && graph_memory_is_in(graph->nodes[i]->child)))
            return true;
    return false;
}

/* Call visit for all memory that the graph and its children allocate, or that they free, until it
 * says false. Lock held.
 */
typedef bool visit_memory(struct graph_memory *memory, void *data);

static bool each(const struct graph *graph, CUgraphNodeType type, visit_memory *visit, void *data)
{
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];

        if (node->child && !each(node->child, type, visit, data))
            return false;
        if (node->type == type && !visit(node->memory, data))
            return false;
    }
    return true;
}

static bool each_allocation(const struct graph *graph, visit_memory *visit, void *data)
{
    return each(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, visit, data);
}

/* --- executables and launches ----------------------------------------------------------------- */

static bool is_single(struct graph_memory *memory, void *data)
{
    (void) data;
    return !memory->is_instantiated;
}

static bool set_instantiated(struct graph_memory *memory, void *data)
{
    memory->is_instantiated = data;
    return true;
}

CUresult graph_memory_instantiate(const struct graph *graph)
{
    bool is_first;

    pthread_mutex_lock(&lock);
    is_first = each_allocation(graph, is_single, NULL);
    if (is_first)
        each_allocation(graph, set_instantiated, reserves);
    pthread_mutex_unlock(&lock);
    return is_first ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void graph_memory_retire(const struct graph *graph)
{
    pthread_mutex_lock(&lock);
    each_allocation(graph, set_instantiated, NULL);
    pthread_mutex_unlock(&lock);
}

static bool sum_missing(struct graph_memory *memory, void *data)
{
    uint64_t *bytes = data;

    if (!memory->holds)
        bytes[memory->device] += memory->bytes;
    return true;
}

CUresult graph_memory_upload(const struct graph *graph)
{
    uint64_t bytes[CONFIG_DEVICES] = {0};
    bool fits = true;

    pthread_mutex_lock(&lock);
    each_allocation(graph, sum_missing, bytes);
    for (uint32_t device = 0; device < CONFIG_DEVICES; device++)
        fits = fits && (!bytes[device] || reserve_grow(reserve_of(device), bytes[device]));
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void apply_free(struct effect *effect)
{
    pthread_mutex_lock(&lock);
    let_go((struct graph_memory *) effect->arguments[0]);
    pthread_mutex_unlock(&lock);
}

CUresult graph_memory_free(struct stream *stream, struct graph_memory *memory)
{
    struct work_order order = {
        .engine = ENGINE_NONE,
        .effect = {.apply = apply_free, .arguments = {(uint64_t) memory}},
    };
    bool was_live;

    pthread_mutex_lock(&lock);
    was_live = memory->is_live;
    memory->is_live = false;
    pthread_mutex_unlock(&lock);
    if (!was_live)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream)
        return queue_submit(stream, &order, NULL);
    apply_free(&order.effect);
    return CUDA_SUCCESS;
}

CUresult graph_memory_free_address(struct stream *stream, CUdeviceptr address)
{
    struct graph_memory *memory = memory_owner(address, MEMORY_GRAPH);

    return memory ? graph_memory_free(stream, memory) : CUDA_ERROR_INVALID_VALUE;
}

static bool is_not_live(struct graph_memory *memory, void *data)
{
    (void) data;
    return !memory->is_live;
}

static CUresult free_left(struct stream *stream, const struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        CUresult result = CUDA_SUCCESS;

        if (node->child)
            result = free_left(stream, node->child);
        else if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->memory->is_live)
            result = graph_memory_free(stream, node->memory);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static bool allocate(struct graph_memory *memory, void *data)
{
    (void) data;
    memory->is_live = hold(memory);
    return memory->is_live;
}

static bool take_back(struct graph_memory *memory, void *data)
{
    (void) data;
    if (!memory->is_live)
        return false; /* this one did not fit, and the ones after it were not tried */
    memory->is_live = false;
    let_go(memory);
    return true;
}

static bool is_live(struct graph_memory *memory, void *data)
{
    (void) data;
    return memory->is_live;
}

CUresult graph_memory_launch(struct stream *stream, const struct graph *graph, bool is_freeing)
{
    CUresult result = CUDA_SUCCESS;

    if (is_freeing)
        result = free_left(stream, graph);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (!each_allocation(graph, is_not_live, NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (!each_allocation(graph, allocate, NULL)) {
        each_allocation(graph, take_back, NULL);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!each(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, is_live, NULL)) {
        each_allocation(graph, take_back, NULL);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- the API ---------------------------------------------------------------------------------- */

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct graph_request request;

    if (nodeParams)
        request = (struct graph_request) {*nodeParams, &nodeParams->dptr};
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                             dependencies, numDependencies, graph_memory_set_allocation,
                             nodeParams ? &request : NULL);
}

NODE_READER(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            CUDA_MEM_ALLOC_NODE_PARAMS *, node->allocation)

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                               const CUgraphNode *dependencies, size_t numDependencies,
                               CUdeviceptr dptr)
{
    return graph_node_create(__func__, phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEM_FREE,
                             dependencies, numDependencies, graph_memory_set_freed, &dptr);
}

NODE_READER(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr *, node->freed)

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER();
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    reserve_shrink(reserve_of((uint32_t) process_device(device)), 0);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    CUresult result = CUDA_SUCCESS;
    const struct reserve *reserve;

    ENTER();
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(value);
    pthread_mutex_lock(&lock);
    reserve = reserve_of((uint32_t) process_device(device));
    switch ((int) attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *) value = reserve->used;
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *) value = reserve->used_high;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *) value = reserve->reserved;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *) value = reserve->reserved_high;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    struct reserve *reserve;

    ENTER();
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    /* A high-water mark can only be set to 0. */
    REQUIRE(
        value && !*(cuuint64_t *) value &&
        (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
    pthread_mutex_lock(&lock);
    reserve = reserve_of((uint32_t) process_device(device));
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        reserve->used_high = reserve->used;
    else
        reserve->reserved_high = reserve->reserved;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
