/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c -- hooks of stream-ordered memory: a pool is charged for what it holds, not for requests.
 *
 * A pool grows in chunks and keeps what is freed, so its charge follows its growth: before a
 * request the growth that it could cause is charged, after it the pool is settled to the bytes
 * that the driver reports. Only when that does not fit is anything asked of the driver: unused
 * chunks are trimmed, and as a last resort the stream is synchronised once.
 */
#include "cuda/pool.h"
#include "cuda/charge.h"
#include "cuda/deferred.h"
#include "driver.h"

#include <pthread.h>

#define POOLS      64
#define POOL_CHUNK (UINT64_C(32) << 20) /* a pool grows by multiples of this (seen on 12.x) */

struct pool {
    CUmemoryPool handle;
    unsigned device;
    uint64_t settled; /* charged, and held by the pool */
    uint64_t pending; /* charged for requests that are with the driver now */
};

/* The forms of one hook: with the legacy default stream, or with the per-thread one. */
struct stream_calls {
    CUresult (*allocate)(CUdeviceptr *, size_t, CUstream);
    CUresult (*free)(CUdeviceptr, CUstream);
    CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *);
    CUresult (*synchronize)(CUstream);
    CUresult (*record)(CUevent, CUstream);
};

int pool_count;

static struct pool pools[POOLS];

/* Held for sums and for asking a pool what it holds, neither of which waits for the device. */
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t pool_attribute(const struct pool *pool, CUmemPool_attribute name)
{
    cuuint64_t value = 0;

    return driver.cuMemPoolGetAttribute(pool->handle, name, &value) == CUDA_SUCCESS ? value : 0;
}

static struct pool *find_pool(CUmemoryPool handle, unsigned device)
{
    struct pool *pool = NULL;

    pthread_mutex_lock(&pool_lock);
    for (int i = 0; i < pool_count && !pool; i++)
        if (pools[i].handle == handle)
            pool = &pools[i];
    if (!pool && pool_count < POOLS) {
        pool = &pools[pool_count];
        *pool = (struct pool) {.handle = handle, .device = device};
        __atomic_store_n(&pool_count, pool_count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&pool_lock);
    return pool;
}

/* Bring the charge of *pool* to what it holds, *charged* being this request's own. Others whose
 * requests are with the driver cover their own growth. -ENOMEM (as the ledger) if the pool took
 * more than was charged and the difference does not fit either. */
static int settle(struct pool *pool, uint64_t charged)
{
    uint64_t covered;
    uint64_t held;
    int result = 0;

    pthread_mutex_lock(&pool_lock);
    held = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    pool->pending -= charged;
    covered = pool->settled + charged;
    if (held > covered && pool->pending)
        held = covered;
    if (held > covered)
        result = ledger_charge(&shim.ledger, pool->device, held - covered);
    else
        ledger_refund(&shim.ledger, pool->device, covered - held);
    pool->settled = result == 0 ? held : covered;
    pthread_mutex_unlock(&pool_lock);
    return result;
}

void pool_reread_all(unsigned device)
{
    int count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);

    for (int i = 0; i < count; i++)
        if (pools[i].device == device)
            settle(&pools[i], 0);
}

static void trim(unsigned device)
{
    int count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);

    for (int i = 0; i < count; i++)
        if (pools[i].device == device)
            driver.cuMemPoolTrimTo(pools[i].handle, 0);
    pool_reread_all(device);
}

int pool_make_room(unsigned device)
{
    if (!__atomic_load_n(&pool_count, __ATOMIC_ACQUIRE))
        return 0;
    trim(device);
    return 1;
}

void pool_after_fork(void)
{
    pthread_mutex_init(&pool_lock, NULL);
    pool_count = 0;
}

static int charge_growth(struct pool *pool, uint64_t bytes)
{
    int result;

    pthread_mutex_lock(&pool_lock);
    result = ledger_charge(&shim.ledger, pool->device, bytes);
    if (result == 0)
        pool->pending += bytes;
    pthread_mutex_unlock(&pool_lock);
    return result;
}

/* Whether the pool can serve the request from what it holds and does not use. */
static int has_room(const struct pool *pool, uint64_t bytes)
{
    return pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >=
           pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) + bytes;
}

/* Charge what a request may add to the pool; *charged* may stay 0 if it needs no growth. */
static int reserve(struct pool *pool, uint64_t bytes, CUstream stream,
                   const struct stream_calls *calls, uint64_t *charged)
{
    uint64_t growth = (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;

    *charged = growth;
    if (charge_growth(pool, growth) == 0)
        return 0;
    trim(pool->device);
    if (charge_growth(pool, growth) == 0)
        return 0;
    if (!has_room(pool, bytes)) {
        calls->synchronize(stream);
        trim(pool->device);
        if (charge_growth(pool, growth) == 0)
            return 0;
    }
    *charged = 0;
    return has_room(pool, bytes) ? 0 : -1;
}

/* The pool that a request on *stream* is served from; NULL if the driver must answer alone. */
static struct pool *pool_of_stream(CUstream stream)
{
    CUcontext context = NULL;
    CUmemoryPool handle;
    int named = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    int device;

    if ((named ? driver.cuStreamGetCtx(stream, &context) : driver.cuCtxGetCurrent(&context)) !=
            CUDA_SUCCESS ||
        !context)
        return NULL;
    device = context_device(context);
    for (CUdevice ordinal = 0; device >= 0 && ordinal < SHIM_ORDINALS; ordinal++)
        if (shim_device(ordinal) == device)
            return driver.cuDeviceGetMemPool(&handle, ordinal) == CUDA_SUCCESS
                       ? find_pool(handle, (unsigned) device)
                       : NULL;
    return NULL;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUstream stream,
                         const struct stream_calls *calls)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    struct pool *pool;
    uint64_t charged;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!address || !bytes)
        return calls->allocate(address, bytes, stream);
    /* A captured allocation takes its memory when the graph is instantiated, not here. */
    if (calls->is_capturing(stream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return calls->allocate(address, bytes, stream);
    pool = pool_of_stream(stream);
    if (!pool)
        return CUDA_ERROR_INVALID_CONTEXT;
    shim_watch_limits();
    if (bytes > UINT64_MAX - POOL_CHUNK || reserve(pool, bytes, stream, calls, &charged) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = calls->allocate(address, bytes, stream);
    if (settle(pool, charged) != 0 && result == CUDA_SUCCESS) {
        calls->free(*address, stream);
        calls->synchronize(stream);
        trim(pool->device);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static struct stream_calls legacy_calls(void)
{
    return (struct stream_calls) {driver.cuMemAllocAsync, driver.cuMemFreeAsync,
                                  driver.cuStreamIsCapturing, driver.cuStreamSynchronize,
                                  driver.cuEventRecord};
}

static struct stream_calls per_thread_calls(void)
{
    return (struct stream_calls) {driver.cuMemAllocAsync_ptsz, driver.cuMemFreeAsync_ptsz,
                                  driver.cuStreamIsCapturing_ptsz, driver.cuStreamSynchronize_ptsz,
                                  driver.cuEventRecord_ptsz};
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct stream_calls calls = legacy_calls();

    return allocate(address, bytes, stream, &calls);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct stream_calls calls = per_thread_calls();

    return allocate(address, bytes, stream, &calls);
}

/* The pool keeps what is freed until it is trimmed or synchronised with, so nothing is given back
 * here. A free of linear memory on a stream takes its entry out as cuMemFree does. */
static CUresult release(CUdeviceptr address, CUstream stream, const struct stream_calls *calls)
{
    struct allocation allocation;
    CUresult result;
    int known;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    known = allocations_take(address, &allocation);
    result = calls->free(address, stream);
    if (known && result == CUDA_SUCCESS)
        deferred_add(&allocation, stream, calls->record);
    else if (known)
        charge_restore(&allocation);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    struct stream_calls calls = legacy_calls();

    return release(address, stream, &calls);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    struct stream_calls calls = per_thread_calls();

    return release(address, stream, &calls);
}
