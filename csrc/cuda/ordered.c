/* SPDX-License-Identifier: Apache-2.0 */
/* ordered.c -- hooks that allocate and free in the order of a stream.
 *
 * A pool grows in chunks and keeps what is freed, so it is charged for what it holds and not for
 * requests. Nothing is waited for unless a request would be refused otherwise.
 */
#include "cuda/charge.h"
#include "cuda/deferred.h"
#include "cuda/pool.h"

/* One request: from the pool of the stream's device, or from one that the program names. */
struct order {
    CUdeviceptr *address;
    size_t bytes;
    struct stream stream;
    int from_named;
    CUmemoryPool named;
};

static CUresult ask(const struct order *order)
{
    const struct stream *stream = &order->stream;

    if (order->from_named)
        return STREAM_CALL(stream, cuMemAllocFromPoolAsync)(order->address, order->bytes,
                                                            order->named, stream->handle);
    return STREAM_CALL(stream, cuMemAllocAsync)(order->address, order->bytes, stream->handle);
}

/* The pool that a request on a stream is served from, NULL with an error if there is none. */
static struct pool *pool_of_stream(CUstream stream, CUresult *error)
{
    CUcontext context = NULL;
    int device;

    *error = context_owns_stream(stream) ? driver.cuStreamGetCtx(stream, &context)
                                         : driver.cuCtxGetCurrent(&context);
    if (*error != CUDA_SUCCESS)
        return NULL;
    device = context ? context_device(context) : -1;
    if (device < 0)
        *error = CUDA_ERROR_INVALID_CONTEXT;
    return device < 0 ? NULL : pool_current((unsigned) device, error);
}

/* The driver took more than was charged for. */
static CUresult undo(const struct order *order)
{
    const struct stream *stream = &order->stream;

    STREAM_CALL(stream, cuMemFreeAsync)(*order->address, stream->handle);
    STREAM_CALL(stream, cuStreamSynchronize)(stream->handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_from(struct pool *pool, const struct order *order, unsigned changes)
{
    struct claim claim = {
        .growth = &pool->growth, .bytes = order->bytes, .worst = growth_chunks(order->bytes)};
    CUresult result;

    result = growth_reserve(&claim, &order->stream);
    if (likely(result == CUDA_SUCCESS)) {
        result = ask(order);
        if (!order->from_named)
            pool_find_claim(&claim, changes);
    }
    pool = (struct pool *) claim.growth;
    if (unlikely(growth_settle(&claim) != 0) && result == CUDA_SUCCESS) {
        result = undo(order);
        growth_make_room(pool->growth.device);
    }
    if (unlikely(result != CUDA_SUCCESS))
        pool_note_free(); /* the claim came to nothing */
    return result;
}

static CUresult allocate(const struct order *order)
{
    unsigned changes = pool_changes();
    CUresult error = CUDA_SUCCESS;
    struct pool *pool;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (unlikely(!order->address || !order->bytes))
        return ask(order);
    if (order->from_named) {
        if (pool_is_destroyed(order->named))
            return CUDA_ERROR_INVALID_VALUE;
        pool = pool_find(order->named);
        if (!pool) /* in host memory, or not a pool */
            return ask(order);
    } else {
        pool = pool_of_stream(order->stream.handle, &error);
        if (!pool)
            return error;
    }
    if (unlikely(order->bytes > UINT64_MAX / 2))
        return charge_refused(pool->growth.device, order->bytes);
    return allocate_from(pool, order, changes);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(&(struct order) {address, bytes, {stream, 0}, 0, NULL});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(&(struct order) {address, bytes, {stream, 1}, 0, NULL});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    return allocate(&(struct order) {address, bytes, {stream, 0}, 1, pool});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream)
{
    return allocate(&(struct order) {address, bytes, {stream, 1}, 1, pool});
}

/* The pool keeps what is freed until it is trimmed or synchronised with, so nothing is given back
 * here. A free of linear memory on a stream takes its entry out as cuMemFree does. */
static CUresult release(CUdeviceptr address, const struct stream *stream)
{
    struct allocation allocation;
    CUresult result;
    int known;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    known = allocations_take(ALLOCATION_LINEAR, address, &allocation);
    result = STREAM_CALL(stream, cuMemFreeAsync)(address, stream->handle);
    if (likely(!known)) {
        if (result == CUDA_SUCCESS && address)
            pool_note_free();
    } else if (result == CUDA_SUCCESS) {
        deferred_add(&allocation, stream->handle, STREAM_CALL(stream, cuEventRecord));
    } else {
        charge_restore(&allocation);
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return release(address, &(struct stream) {stream, 0});
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return release(address, &(struct stream) {stream, 1});
}
