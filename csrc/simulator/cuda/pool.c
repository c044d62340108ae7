/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c -- memory pools: their reserved memory, and stream-ordered allocation from them.
 *
 * A pool charges the machine for the memory that it reserves (cuda/reserve.h). A synchronisation
 * shrinks that to the pool's threshold, or to what is in use. A block freed in a stream counts as
 * unused from the call on; its address is reusable once the stream has reached the free.
 *
 * The lock here is the innermost: only the machine's accounting is called with it held.
 */
#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/graphmemory.h"
#include "cuda/import.h"
#include "cuda/placement.h"
#include "cuda/pool.h"
#include "memory.h"

enum { POOL_MAGIC = 0x706f6f6c };

pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static _Atomic bool there_are_pools;

struct pool *pool_add(enum pool_home home, uint32_t device)
{
    struct pool *pool = pools;

    while (pool && (pool->magic || pool->reserve.used))
        pool = pool->next;
    if (!pool) {
        pool = malloc(sizeof(*pool));
        if (!pool)
            return NULL;
        pool->next = pools;
        pools = pool;
    }
    *pool = (struct pool) {
        .magic = POOL_MAGIC,
        .home = home,
        .reserve = {.device = device, .is_free_of_charge = home == POOL_ON_HOST},
        .next = pool->next,
        .reuse = {1, 1, 1},
    };
    there_are_pools = true;
    return pool;
}

struct pool *pool_find(CUmemoryPool handle)
{
    struct pool *pool = (struct pool *) handle;

    if (!pool || (uintptr_t) handle % sizeof(void *) || pool->magic != POOL_MAGIC)
        return NULL;
    return pool;
}

/* No lock held: records of pools live as long as the process. */
static void shrink_placed(uint32_t device, bool wholly)
{
    struct pool *pool;

    pthread_mutex_lock(&pool_lock);
    pool = pools;
    pthread_mutex_unlock(&pool_lock);
    for (; pool; pool = pool->next)
        if (pool->magic && pool->reserve.device == device && placement_has(pool))
            placement_shrink(pool, wholly || pool->is_destroyed ? 0 : pool->threshold);
}

static void shrink_all(uint32_t device, bool wholly)
{
    if (!atomic_load_explicit(&there_are_pools, memory_order_relaxed))
        return;
    pthread_mutex_lock(&pool_lock);
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->reserve.device == device && !placement_has(pool))
            reserve_shrink(&pool->reserve, wholly || pool->is_destroyed ? 0 : pool->threshold);
    pthread_mutex_unlock(&pool_lock);
    if (process.machine->config.pools_are_placed)
        shrink_placed(device, wholly);
}

void pool_trim_all(uint32_t device)
{
    shrink_all(device, false);
}

void pool_note_unused(struct pool *pool, uint64_t bytes)
{
    reserve_unuse(&pool->reserve, bytes);
    if (pool->is_destroyed && !pool->reserve.used) {
        reserve_end(&pool->reserve);
        pool->magic = 0;
    }
}

void pool_forget(void *owner, uint64_t bytes)
{
    struct pool *pool = owner;

    if (!pool)
        return;
    pthread_mutex_lock(&pool_lock);
    pool_note_unused(pool, reserve_round(bytes));
    reserve_shrink(&pool->reserve, pool->is_destroyed ? 0 : pool->threshold);
    pthread_mutex_unlock(&pool_lock);
}

static bool use(struct pool *pool, uint64_t bytes)
{
    bool fits;

    pthread_mutex_lock(&pool_lock);
    fits = reserve_use(&pool->reserve, bytes);
    pthread_mutex_unlock(&pool_lock);
    return fits;
}

static CUresult place(struct pool *pool, struct stream *stream, uint64_t bytes,
                      CUdeviceptr *address)
{
    CUresult result = placement_take(pool, stream, bytes, false, address);

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = placement_take(pool, stream, bytes, true, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        shrink_all(pool->reserve.device, true);
        result = placement_take(pool, stream, bytes, false, address);
    }
    return result;
}

/* The ordinal of a device pool's device; -1 if the process cannot see that device. */
static int ordinal_of(const struct pool *pool)
{
    for (int ordinal = 0; ordinal < process.device_count; ordinal++)
        if (process.devices[ordinal] == (int) pool->reserve.device)
            return ordinal;
    return -1;
}

static CUresult allocate(struct stream *stream, CUdeviceptr *address, size_t bytes,
                         struct pool *pool)
{
    uint64_t counted = reserve_round(bytes);
    CUresult result;

    REQUIRE(address && bytes);
    if (!pool || pool->holder)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture && pool->home != POOL_ON_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (stream->capture)
        return capture_add_allocation(stream, bytes, ordinal_of(pool), address);
    if (counted > process.machine->config.devices[pool->reserve.device].memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (placement_has(pool))
        return place(pool, stream, counted, address);
    if (!use(pool, counted)) {
        shrink_all(pool->reserve.device, true);
        if (!use(pool, counted))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool->home != POOL_ON_DEVICE)
        result = memory_allocate_shown(pool->reserve.device, MEMORY_POOL, bytes, address);
    else
        result = pool->reserve.device == stream->device
                     ? memory_allocate(stream->work, MEMORY_POOL, bytes, address)
                     : memory_allocate_on(pool->reserve.device, MEMORY_POOL, bytes, address);
    if (result == CUDA_SUCCESS)
        memory_set_owner(*address, pool);
    else
        pool_forget(pool, bytes);
    return result;
}

/* Clear the block's owner: a second free finds none. */
static struct pool *disown(CUdeviceptr address, uint64_t *bytes)
{
    struct memory_info info;
    struct pool *pool = memory_owner(address, MEMORY_POOL);

    if (!pool || !memory_find(address, &info))
        return NULL;
    memory_set_owner(address, NULL);
    *bytes = reserve_round(info.size);
    return pool;
}

static void free_block(struct effect *effect)
{
    memory_free(effect->arguments[0], (enum memory_kind) effect->arguments[1]);
}

/* Free memory of no pool of this process: a graph's, or of another process's pool. */
static CUresult free_foreign(struct stream *stream, CUdeviceptr address)
{
    CUresult result = graph_memory_free_address(stream, address);

    return result == CUDA_SUCCESS ? result : import_close(address, MEMORY_POOL);
}

/* Memory of cuMemAlloc may be freed on a stream, too: it exists until the stream reaches the free.
 */
static bool is_linear(CUdeviceptr address, enum memory_kind *kind)
{
    struct memory_info info;

    if (!memory_find(address, &info) || info.base != address ||
        (info.kind != MEMORY_DEVICE && info.kind != MEMORY_MANAGED))
        return false;
    *kind = info.kind;
    return true;
}

static CUresult free_in_stream(struct stream *stream, CUdeviceptr address)
{
    struct work_order order = {
        .engine = ENGINE_NONE,
        .effect = {.apply = free_block, .arguments = {address, MEMORY_POOL}},
    };
    enum memory_kind kind;
    struct pool *pool;
    uint64_t bytes;

    if (!address)
        return CUDA_SUCCESS;
    if (stream->capture)
        return capture_add_free(stream, address);
    if (is_linear(address, &kind)) {
        order.effect.arguments[1] = kind;
        return queue_submit(stream, &order, NULL);
    }
    pool = disown(address, &bytes);
    if (!pool && placement_free(stream, address) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (!pool)
        return free_foreign(stream, address);
    pthread_mutex_lock(&pool_lock);
    pool_note_unused(pool, bytes);
    pthread_mutex_unlock(&pool_lock);
    return queue_submit(stream, &order, NULL);
}

CUresult pool_free_now(CUdeviceptr address)
{
    uint64_t bytes;
    struct pool *pool = disown(address, &bytes);

    if (!pool && placement_free(NULL, address) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (!pool)
        return free_foreign(NULL, address);
    memory_free(address, MEMORY_POOL);
    pool_forget(pool, bytes);
    return CUDA_SUCCESS;
}

STREAM_CALL(cuMemAllocAsync, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
            allocate(stream, dptr, bytesize, pool_chosen(POOL_ON_DEVICE, stream->device)))
STREAM_CALL(cuMemAllocFromPoolAsync,
            (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
            allocate(stream, dptr, bytesize, pool_find(pool)))
STREAM_CALL(cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), free_in_stream(stream, dptr))
