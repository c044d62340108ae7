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
    uint64_t asked;   /* bytes of these requests */
    unsigned users;   /* threads between finding the pool and settling it */
    unsigned relying; /* of them: those that charged nothing, since the pool has room for them */
};

/* One request on its way. */
struct request {
    struct pool *pool;
    uint64_t bytes;
    uint64_t charged; /* for the growth that it may cause */
    int relying;
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

/* False if the driver would not say. A pool that is gone holds nothing. */
static int read_attribute(const struct pool *pool, CUmemPool_attribute name, uint64_t *value)
{
    cuuint64_t answer = 0;
    CUresult result = driver.cuMemPoolGetAttribute(pool->handle, name, &answer);

    *value = answer;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
           result == CUDA_ERROR_INVALID_HANDLE;
}

/* Bring the charge of *pool* to what it holds; *charged* is the part that a request just over had
 * brought. Others whose requests are with the driver cover their own growth, and what they rely
 * on is not given back. -ENOMEM (as the ledger) if the pool took more than was charged and the
 * difference does not fit either. Lock held. */
static int settle_charge(struct pool *pool, uint64_t charged)
{
    uint64_t covered = pool->settled + charged;
    uint64_t held;
    int result = 0;

    if (!read_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held) ||
        (held > covered && pool->pending) || (held < covered && pool->relying))
        held = covered;
    if (held > covered)
        result = ledger_charge(&shim.ledger, pool->device, held - covered);
    else
        ledger_refund(&shim.ledger, pool->device, covered - held);
    pool->settled = result == 0 ? held : covered;
    return result;
}

/* A place for one more pool: a new one, or that of a pool that holds nothing. Lock held. */
static struct pool *unused_pool(void)
{
    if (pool_count < POOLS)
        return &pools[pool_count];
    for (int i = 0; i < POOLS; i++) {
        if (pools[i].users)
            continue;
        settle_charge(&pools[i], 0);
        if (!pools[i].settled)
            return &pools[i];
    }
    return NULL;
}

/* The record of a pool, which stays its until a request of it was settled; NULL without room. */
static struct pool *use_pool(CUmemoryPool handle, unsigned device)
{
    struct pool *pool = NULL;

    pthread_mutex_lock(&pool_lock);
    for (int i = 0; i < pool_count && !pool; i++)
        if (pools[i].handle == handle)
            pool = &pools[i];
    if (!pool && (pool = unused_pool())) {
        *pool = (struct pool) {.handle = handle, .device = device};
        if (pool == &pools[pool_count])
            __atomic_store_n(&pool_count, pool_count + 1, __ATOMIC_RELEASE);
    }
    if (pool)
        pool->users++;
    pthread_mutex_unlock(&pool_lock);
    return pool;
}

/* The driver has answered a request, or it was never asked. */
static int settle(const struct request *request)
{
    struct pool *pool = request->pool;
    int asked = request->charged || request->relying;
    int result;

    pthread_mutex_lock(&pool_lock);
    pool->users--;
    pool->pending -= request->charged;
    pool->relying -= request->relying ? 1 : 0;
    pool->asked -= asked ? request->bytes : 0;
    result = settle_charge(pool, request->charged);
    pthread_mutex_unlock(&pool_lock);
    return result;
}

void pool_reread_all(unsigned device)
{
    int count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);

    for (int i = 0; i < count; i++)
        if (pools[i].device == device) {
            pthread_mutex_lock(&pool_lock);
            settle_charge(&pools[i], 0);
            pthread_mutex_unlock(&pool_lock);
        }
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

/* Charge the growth that a request may cause. */
static int charge_growth(struct request *request)
{
    struct pool *pool = request->pool;
    uint64_t growth = (request->bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
    int result;

    pthread_mutex_lock(&pool_lock);
    result = ledger_charge(&shim.ledger, pool->device, growth);
    if (result == 0) {
        request->charged = growth;
        pool->pending += growth;
        pool->asked += request->bytes;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

/* Charge nothing if the pool can serve the request, and all that are with the driver, from what
 * it holds and does not use. */
static int rely_on_room(struct request *request)
{
    struct pool *pool = request->pool;
    uint64_t held;
    uint64_t used;

    pthread_mutex_lock(&pool_lock);
    if (read_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) &&
        read_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held) && held >= used &&
        held - used >= pool->asked && held - used - pool->asked >= request->bytes) {
        request->relying = 1;
        pool->relying++;
        pool->asked += request->bytes;
    }
    pthread_mutex_unlock(&pool_lock);
    return request->relying ? 0 : -1;
}

/* Cover a request before the driver is asked: by a charge, or by room that is charged already. */
static int reserve(struct request *request, CUstream stream, const struct stream_calls *calls)
{
    if (charge_growth(request) == 0)
        return 0;
    trim(request->pool->device);
    if (charge_growth(request) == 0 || rely_on_room(request) == 0)
        return 0;
    calls->synchronize(stream);
    trim(request->pool->device);
    return charge_growth(request) == 0 || rely_on_room(request) == 0 ? 0 : -1;
}

/* The device as CUDA counts, -1 if the driver does not show it. */
static CUdevice ordinal_of(int device)
{
    for (CUdevice ordinal = 0; device >= 0 && ordinal < SHIM_ORDINALS; ordinal++)
        if (shim_device(ordinal) == device)
            return ordinal;
    return -1;
}

/* The pool that a request on *stream* is served from, or why there is none. */
static CUresult use_pool_of_stream(CUstream stream, struct pool **pool)
{
    CUcontext context = NULL;
    CUmemoryPool handle;
    CUresult result = context_owns_stream(stream) ? driver.cuStreamGetCtx(stream, &context)
                                                  : driver.cuCtxGetCurrent(&context);
    int device;

    if (result != CUDA_SUCCESS)
        return result;
    device = context ? context_device(context) : -1;
    if (ordinal_of(device) < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = driver.cuDeviceGetMemPool(&handle, ordinal_of(device));
    if (result != CUDA_SUCCESS)
        return result;
    *pool = use_pool(handle, (unsigned) device);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUstream stream,
                         const struct stream_calls *calls)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    struct request request = {.bytes = bytes};
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!address || !bytes)
        return calls->allocate(address, bytes, stream);
    result = calls->is_capturing(stream, &capture);
    if (result != CUDA_SUCCESS)
        return result;
    /* A captured allocation takes its memory when the graph is instantiated, not here. */
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return calls->allocate(address, bytes, stream);
    result = use_pool_of_stream(stream, &request.pool);
    if (result != CUDA_SUCCESS)
        return result;
    shim_watch_limits();
    if (bytes > UINT64_MAX - POOL_CHUNK || reserve(&request, stream, calls) != 0) {
        settle(&request);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = calls->allocate(address, bytes, stream);
    if (settle(&request) != 0 && result == CUDA_SUCCESS) {
        calls->free(*address, stream);
        calls->synchronize(stream);
        trim(request.pool->device);
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
    known = allocations_take(ALLOCATION_LINEAR, address, &allocation);
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
