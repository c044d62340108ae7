/* SPDX-License-Identifier: Apache-2.0 */
/* graph_memory.c -- the stores of graph memory, one per device; see graph_memory.h. */
#include "shim/cuda/memory/graph_memory.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/pool.h"
#include "core/mutex.h"
#include "core/spin.h"

#include <pthread.h>
#include <stdlib.h>

struct store {
    struct pool_charge growth; /* first, so that a growth pointer is a store pointer */
    const void *last;          /* the graph that used it last and has its memory there; or NULL */
    unsigned calls; /* incremented when a use of it, or a trim, begins and when it ends */
    int registered;
};

static struct store stores[REGION_DEVICES];
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

static int read_held(const struct pool_charge *growth, uint64_t *held)
{
    cuuint64_t answer = 0;
    CUresult result = driver.cuDeviceGetGraphMemAttribute(
        shim_ordinal((int) growth->device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &answer);

    *held = answer;
    return result == CUDA_SUCCESS;
}

static int has_room(const struct pool_charge *growth, const struct claim *claim)
{
    const struct store *store = (const struct store *) growth;

    return claim->subject && __atomic_load_n(&store->last, __ATOMIC_ACQUIRE) == claim->subject;
}

/* A use or trim begins or ends: no graph may rely on its memory any more. Returns `calls`. */
static unsigned disturb(struct store *store)
{
    unsigned calls;

    spin_lock(&store->growth.locked, LOCK_POOL);
    calls = ++store->calls;
    __atomic_store_n(&store->last, NULL, __ATOMIC_RELAXED);
    spin_unlock(&store->growth.locked, LOCK_POOL);
    return calls;
}

/* A claim that relies on memory that is trimmed now was marked before the charge is refunded. */
static CUresult trim_store(struct store *store, CUdevice ordinal)
{
    CUresult result;

    disturb(store);
    result = driver.cuDeviceGraphMemTrim(ordinal);
    disturb(store);
    return result;
}

/* The driver can only trim all of it. */
static void trim(struct pool_charge *growth, uint64_t bytes)
{
    (void) bytes;
    trim_store((struct store *) growth, shim_ordinal((int) growth->device));
}

static const struct pool_charge_source store_source = {read_held, has_room, trim, NULL};

static struct store *store_of(unsigned device)
{
    struct store *store = &stores[device];

    mutex_lock(&registry_lock, LOCK_GRAPH_STORES);
    if (!store->registered) {
        store->registered = 1;
        store->growth.source = &store_source;
        store->growth.device = device;
        pool_charge_register(&store->growth);
    }
    mutex_unlock(&registry_lock, LOCK_GRAPH_STORES);
    return store;
}

/* --- what a graph needs ----------------------------------------------------------------------- */

static CUresult add_allocation(CUgraphNode node, struct graph_needs *needs)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUresult result = driver.cuGraphMemAllocNodeGetParams(node, &params);
    int device;

    if (result != CUDA_SUCCESS)
        return result;
    device = pool_device(&params.poolProps);
    needs->blocks++;
    if (device < 0)
        return CUDA_SUCCESS;
    if (__builtin_add_overflow(needs->bytes[device], charge_size(params.bytesize),
                               &needs->bytes[device]))
        return CUDA_ERROR_OUT_OF_MEMORY;
    needs->any = 1;
    return CUDA_SUCCESS;
}

static CUresult add_graph(CUgraph graph, struct graph_needs *needs);

static CUresult add_node(CUgraphNode node, struct graph_needs *needs)
{
    CUgraphNodeType type;
    CUgraph child;
    CUresult result = driver.cuGraphNodeGetType(node, &type);

    if (result != CUDA_SUCCESS)
        return result;
    switch ((int) type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_allocation(node, needs);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        needs->blocks--;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        result = driver.cuGraphChildGraphNodeGetGraph(node, &child);
        return result == CUDA_SUCCESS ? add_graph(child, needs) : result;
    default:
        return CUDA_SUCCESS;
    }
}

static CUresult add_graph(CUgraph graph, struct graph_needs *needs)
{
    CUgraphNode *nodes;
    size_t count = 0;
    CUresult result = driver.cuGraphGetNodes(graph, NULL, &count);

    if (result != CUDA_SUCCESS || !count)
        return result;
    nodes = malloc(count * sizeof(CUgraphNode));
    if (!nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver.cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = add_node(nodes[i], needs);
    free(nodes);
    return result;
}

CUresult graph_memory_needs_of(CUgraph graph, struct graph_needs *needs)
{
    *needs = (struct graph_needs) {.any = 0};
    return add_graph(graph, needs);
}

/* --- launching a graph ------------------------------------------------------------------------ */

CUresult graph_memory_reserve(struct graph_claims *claims, const struct graph_needs *needs,
                              const void *graph, const struct stream *stream)
{
    CUresult result = CUDA_SUCCESS;

    *claims = (struct graph_claims) {.calls = {0}};
    for (unsigned device = 0; device < REGION_DEVICES && result == CUDA_SUCCESS; device++) {
        struct claim *claim = &claims->claims[device];
        struct store *store;

        if (!needs->bytes[device])
            continue;
        store = store_of(device);
        /* The driver allocates whole chunks for all nodes together. */
        *claim = (struct claim) {.growth = &store->growth,
                                 .subject = graph,
                                 .bytes = needs->bytes[device],
                                 .worst = pool_charge_chunks(needs->bytes[device])};
        if (pool_charge_rely(claim) != 0)
            result = pool_charge_reserve(claim, stream);
        claims->calls[device] = disturb(store);
    }
    return result;
}

/* The graph's memory is there for its next launch, unless others used the store meanwhile. */
static void note_last(struct store *store, unsigned calls, const void *graph)
{
    spin_lock(&store->growth.locked, LOCK_POOL);
    if (++store->calls == calls + 1 && store->growth.users == 1)
        __atomic_store_n(&store->last, graph, __ATOMIC_RELAXED);
    spin_unlock(&store->growth.locked, LOCK_POOL);
}

void graph_memory_settle(struct graph_claims *claims, const void *graph)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        struct claim *claim = &claims->claims[device];

        if (!claim->growth)
            continue;
        note_last((struct store *) claim->growth, claims->calls[device], graph);
        if (pool_charge_settle(claim) != 0) /* over the quota, but it runs: trim unused memory */
            pool_charge_make_room(device);
    }
}

void graph_memory_forget(const void *graph)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        const void *last = graph;

        __atomic_compare_exchange_n(&stores[device].last, &last, NULL, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
}

void graph_memory_after_fork(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        stores[device] = (struct store) {.registered = 0};
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    int device = shim_device(ordinal);
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0)
        return driver.cuDeviceGraphMemTrim(ordinal);
    result = trim_store(&stores[device], ordinal);
    pool_charge_reread(device);
    return result;
}
