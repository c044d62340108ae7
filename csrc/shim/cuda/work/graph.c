/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c -- hooks of executable graphs: charges the memory of memory nodes in advance, and makes
 * each launch pay the time that earlier ones took.
 *
 * Only graphs with memory nodes are registered here. In a process without any, a launch costs one
 * load more than the driver's own.
 */
#include "shim/cuda/work/graph.h"
#include "shim/cuda/memory/graph_memory.h"
#include "shim/cuda/work/pace.h"
#include "shim/cuda/memory/pool.h"
#include "core/spin.h"

#include <stdlib.h>

#define BUCKETS 64 /* a power of two */

struct executable {
    struct executable *next;
    CUgraphExec handle;
    struct graph_needs needs;
};

static struct executable *buckets[BUCKETS];
static int locked; /* for the lists, never over a call */
static int count;  /* executables in them; read without the lock */

static struct executable **link_of(CUgraphExec handle)
{
    uint64_t hash = (uint64_t) (uintptr_t) handle * UINT64_C(0x9e3779b97f4a7c15);
    struct executable **link = &buckets[hash >> 58];

    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    return link;
}

/* Insert an executable. An earlier one with its handle was destroyed with its context, unseen. */
static void insert(struct executable *executable)
{
    struct executable **link;
    struct executable *gone;

    spin_lock(&locked, LOCK_GRAPHS);
    link = link_of(executable->handle);
    gone = *link;
    executable->next = gone ? gone->next : NULL;
    *link = executable;
    if (!gone)
        __atomic_add_fetch(&count, 1, __ATOMIC_RELEASE);
    spin_unlock(&locked, LOCK_GRAPHS);
    free(gone);
}

static struct executable *take(CUgraphExec handle)
{
    struct executable *executable = NULL;
    struct executable **link;

    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE))
        return NULL;
    spin_lock(&locked, LOCK_GRAPHS);
    link = link_of(handle);
    if (*link) {
        executable = *link;
        *link = executable->next;
        __atomic_sub_fetch(&count, 1, __ATOMIC_RELEASE);
    }
    spin_unlock(&locked, LOCK_GRAPHS);
    return executable;
}

/* What an executable needs; 0 if it has no memory nodes. */
static int find_needs(CUgraphExec handle, struct graph_needs *needs)
{
    const struct executable *executable;

    spin_lock(&locked, LOCK_GRAPHS);
    executable = *link_of(handle);
    if (executable)
        *needs = executable->needs;
    spin_unlock(&locked, LOCK_GRAPHS);
    return executable != NULL;
}

/* The key of its cost: for all that it does, including child graphs, before and after updates. */
static struct costs_key key_of(CUgraphExec handle)
{
    return costs_key((uintptr_t) handle, 0);
}

static void forget_cost(CUgraphExec handle)
{
    struct costs_key key = key_of(handle);

    costs_forget(&launch_costs, &key);
}

void graph_after_fork(void)
{
    locked = 0;
    count = 0;
    for (unsigned i = 0; i < BUCKETS; i++)
        buckets[i] = NULL;
}

/* --- instantiating ---------------------------------------------------------------------------- */

/* An instantiation in progress; *made* is NULL if the graph has no memory nodes. */
struct making {
    struct executable *made;
    struct graph_claims claims;
};

static CUresult begin_making(struct making *making, CUgraph graph, const struct stream *stream)
{
    struct graph_needs needs;
    CUresult result;

    *making = (struct making) {.made = NULL};
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    /* An invalid graph has no nodes, and the driver returns its own error. */
    result = graph ? graph_memory_needs_of(graph, &needs) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (result != CUDA_SUCCESS || !needs.any)
        return CUDA_SUCCESS;
    making->made = calloc(1, sizeof(*making->made));
    if (!making->made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    making->made->needs = needs;
    return graph_memory_reserve(&making->claims, &needs, NULL, stream);
}

static CUresult end_making(struct making *making, CUresult result, const CUgraphExec *handle)
{
    if (result == CUDA_SUCCESS)
        forget_cost(*handle); /* as insert() says */
    if (!making->made) {
        if (result == CUDA_SUCCESS)
            free(take(*handle)); /* as insert() says */
        return result;
    }
    graph_memory_settle(&making->claims, NULL);
    if (result == CUDA_SUCCESS) {
        graph_memory_forget(*handle);
        making->made->handle = *handle;
        insert(making->made);
    } else {
        free(making->made);
    }
    return result;
}

/* The body of all forms: reserve, call the driver, settle and register. */
#define INSTANTIATE(stream, symbol, ...)                        \
    do {                                                        \
        struct making making;                                   \
        CUresult result = begin_making(&making, graph, stream); \
                                                                \
        if (result == CUDA_SUCCESS)                             \
            result = driver.symbol(__VA_ARGS__);                \
        return end_making(&making, result, executable);         \
    } while (0)

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error, char *log,
                            size_t size)
{
    INSTANTIATE(NULL, cuGraphInstantiate, executable, graph, error, log, size);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error,
                               char *log, size_t size)
{
    INSTANTIATE(NULL, cuGraphInstantiate_v2, executable, graph, error, log, size);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags)
{
    INSTANTIATE(NULL, cuGraphInstantiateWithFlags, executable, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    INSTANTIATE(NULL, cuGraphInstantiateWithParams, executable, graph, params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    INSTANTIATE(NULL, cuGraphInstantiateWithParams_ptsz, executable, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    struct executable *executable;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    executable = take(handle); /* before its handle can be reused */
    forget_cost(handle);
    if (!executable)
        return driver.cuGraphExecDestroy(handle);
    graph_memory_forget(handle);
    result = driver.cuGraphExecDestroy(handle);
    if (result != CUDA_SUCCESS) {
        insert(executable);
        return result;
    }
    free(executable);
    pool_charge_reread(-1);
    return result;
}

/* --- updating --------------------------------------------------------------------------------- */

/* The executable was updated from *graph*. Today's drivers do not change memory nodes; should one
 * do so, the larger need counts. */
static CUresult update(CUresult result, CUgraphExec handle, CUgraph graph)
{
    struct graph_needs needs;
    struct executable *executable;

    if (result != CUDA_SUCCESS || !__atomic_load_n(&count, __ATOMIC_ACQUIRE) ||
        graph_memory_needs_of(graph, &needs) != CUDA_SUCCESS)
        return result;
    graph_memory_forget(handle);
    spin_lock(&locked, LOCK_GRAPHS);
    executable = *link_of(handle);
    for (unsigned device = 0; executable && device < REGION_DEVICES; device++)
        if (executable->needs.bytes[device] < needs.bytes[device])
            executable->needs.bytes[device] = needs.bytes[device];
    spin_unlock(&locked, LOCK_GRAPHS);
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *error,
                           CUgraphExecUpdateResult *outcome)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    return update(driver.cuGraphExecUpdate(executable, graph, error, outcome), executable, graph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                              CUgraphExecUpdateResultInfo *outcome)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    return update(driver.cuGraphExecUpdate_v2(executable, graph, outcome), executable, graph);
}

/* --- launching -------------------------------------------------------------------------------- */

typedef CUresult graph_call(CUgraphExec, CUstream);

static CUresult run_with_memory(graph_call *call, CUgraphExec handle, const struct stream *stream,
                                const struct graph_needs *needs)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &capture);
    struct graph_claims claims;

    if (result != CUDA_SUCCESS)
        return result;
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) /* it becomes a node, and takes nothing now */
        return call(handle, stream->handle);
    pool_note_blocks(needs->blocks > 0 ? needs->blocks : 0);
    result = graph_memory_reserve(&claims, needs, handle, stream);
    if (result == CUDA_SUCCESS)
        result = call(handle, stream->handle);
    graph_memory_settle(&claims, result == CUDA_SUCCESS ? handle : NULL);
    return result;
}

static CUresult run(graph_call *call, CUgraphExec handle, struct stream stream)
{
    struct graph_needs needs;

    if (likely(!__atomic_load_n(&count, __ATOMIC_ACQUIRE)))
        return shim.open ? call(handle, stream.handle) : CUDA_ERROR_NOT_INITIALIZED;
    if (!find_needs(handle, &needs))
        return call(handle, stream.handle);
    return run_with_memory(call, handle, &stream, &needs);
}

static CUresult launch(graph_call *call, CUgraphExec handle, struct stream stream)
{
    struct pace_work work;
    CUresult result;

    if (pace_is_free())
        return run(call, handle, stream);
    result = pace_begin(&work, key_of(handle), COSTS_GUESS_NS, stream);
    return result == CUDA_SUCCESS ? pace_end(&work, run(call, handle, stream)) : result;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    return launch(driver.cuGraphLaunch, executable, STREAM_LEGACY(stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream)
{
    return launch(driver.cuGraphLaunch_ptsz, executable, STREAM_PER_THREAD(stream));
}

CUresult cuGraphUpload(CUgraphExec executable, CUstream stream)
{
    return run(driver.cuGraphUpload, executable, STREAM_LEGACY(stream));
}

CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream)
{
    return run(driver.cuGraphUpload_ptsz, executable, STREAM_PER_THREAD(stream));
}
