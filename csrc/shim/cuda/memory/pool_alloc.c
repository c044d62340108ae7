/* SPDX-License-Identifier: Apache-2.0 */
/* pool_alloc.c -- hooks of the stream-ordered allocator (cuMemAllocAsync, cuMemFreeAsync).
 *
 * A pool grows in chunks and keeps freed memory, so the charge is for what it holds and not for
 * requests. No call here waits for a stream or for the device.
 */
#include "shim/cuda/work/capture.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/memory/managed.h"
#include "shim/cuda/memory/pool_ranges.h"

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

/* The pool that serves requests on a stream; NULL, with an error, if there is none. With one device
 * it is the same for all streams; whether there is a context, the driver says. */
static struct pool *pool_of_stream(CUstream stream, CUresult *error)
{
    CUcontext context = NULL;
    int device = shim_only_device();

    if (likely(device >= 0))
        return pool_current((unsigned) device, error);
    *error = stream_is_object(stream) ? driver.cuStreamGetCtx(stream, &context)
                                      : driver.cuCtxGetCurrent(&context);
    if (*error != CUDA_SUCCESS)
        return NULL;
    device = context ? context_device(context) : -1;
    if (device < 0)
        *error = CUDA_ERROR_INVALID_CONTEXT;
    return device < 0 ? NULL : pool_current((unsigned) device, error);
}

/* The driver's error if a request that is to be refused has no context; with several devices
 * pool_of_stream() has found one. */
static OUT_OF_LINE CUresult find_context(const struct order *order)
{
    CUcontext context = NULL;
    CUresult result = CUDA_SUCCESS;

    if (order->from_named || stream_is_object(order->stream.handle))
        return CUDA_SUCCESS;
    result = driver.cuCtxGetCurrent(&context);
    return result == CUDA_SUCCESS && !context ? CUDA_ERROR_INVALID_CONTEXT : result;
}

/* The driver took more than was charged: free the block, and trim the pool. */
static CUresult undo(struct pool *pool, const struct order *order)
{
    const struct stream *stream = &order->stream;
    struct pool_ranges_block block = pool_ranges_take(*order->address);

    STREAM_CALL(stream, cuMemFreeAsync)(*order->address, stream->handle);
    pool_ranges_put(&block, stream);
    pool_ranges_forget(pool);
    pool_charge_make_room(pool->growth.device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Note the allocated block of the pool, unless the stream captures: then it belongs to a graph. */
static void note_block(struct claim *claim, const struct order *order)
{
    const struct stream *stream = &order->stream;
    struct pool *pool = (struct pool *) claim->growth;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

    if (capture_is_going_on() &&
        STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &capture) != CUDA_SUCCESS)
        pool_ranges_forget(pool);
    else if (likely(capture == CU_STREAM_CAPTURE_STATUS_NONE))
        pool_ranges_use(pool, claim, *order->address);
}

static CUresult allocate_from(struct pool *pool, const struct order *order, unsigned changes)
{
    struct claim claim = {.growth = &pool->growth,
                          .subject = &order->stream,
                          .bytes = order->bytes,
                          .worst = pool_charge_chunks(order->bytes)};
    CUresult result, error;

    pool_ranges_note_stream(&order->stream);
    result = pool_charge_reserve(&claim, &order->stream);
    if (likely(result == CUDA_SUCCESS)) {
        result = ask(order);
        if (!order->from_named)
            pool_find_claim(&claim, changes);
        if (likely(result == CUDA_SUCCESS))
            note_block(&claim, order);
    } else {
        error = find_context(order);
        result = error == CUDA_SUCCESS ? result : error;
    }
    pool = (struct pool *) claim.growth;
    if (unlikely(pool_charge_settle(&claim) != 0) && result == CUDA_SUCCESS)
        result = undo(pool, order);
    if (unlikely(__atomic_load_n(&pool->grew, __ATOMIC_RELAXED)))
        pool_ranges_read(pool);
    if (unlikely(result != CUDA_SUCCESS))
        pool_note_free(); /* the claim became no block */
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
    if (unlikely(order->bytes > UINT64_MAX / 2)) {
        error = find_context(order);
        return error == CUDA_SUCCESS ? charge_refused(pool->growth.device, order->bytes) : error;
    }
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

/* Free linear memory on a stream. Like in cuMemFree, its entry was taken out first. */
static CUresult release_linear(const struct allocation *allocation, const struct stream *stream)
{
    struct managed_charges moved = {.count = 0};
    CUresult result;

    if (unlikely(__atomic_load_n(&managed_moved, __ATOMIC_SEQ_CST)))
        managed_take(allocation->address, &moved);
    result = STREAM_CALL(stream, cuMemFreeAsync)(allocation->address, stream->handle);
    if (result != CUDA_SUCCESS) {
        entry_restore(allocation);
        managed_restore(&moved);
        return result;
    }
    deferred_free_add(allocation, stream->handle, STREAM_CALL(stream, cuEventRecord));
    for (unsigned i = 0; i < moved.count; i++)
        deferred_free_add(&moved.charges[i], stream->handle, STREAM_CALL(stream, cuEventRecord));
    return result;
}

/* Free a block. The pool keeps it until it is trimmed or the program synchronises, so nothing is
 * refunded here. */
static CUresult release(CUdeviceptr address, const struct stream *stream)
{
    struct allocation allocation;
    struct pool_ranges_block block;
    CUresult result;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (unlikely(allocations_take(ALLOCATION_LINEAR, address, &allocation)))
        return release_linear(&allocation, stream);
    pool_ranges_note_stream(stream);
    block = pool_ranges_take(address);
    result = STREAM_CALL(stream, cuMemFreeAsync)(address, stream->handle);
    if (unlikely(result != CUDA_SUCCESS)) {
        pool_ranges_restore(&block);
        return result;
    }
    pool_ranges_put(&block, stream);
    if (likely(address))
        pool_note_free();
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
