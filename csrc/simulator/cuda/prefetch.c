/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch.c -- prefetch of managed memory to devices other than the one that allocated it.
 *
 * Its pages are not tracked: memory prefetched to a device takes its whole size there, too, until
 * it is freed, as read-mostly memory may.
 */
#include "cuda/capture.h"
#include "cuda/entry.h"
#include "memory.h"

#define NOWHERE (-2)

static int ordinal_at(CUmemLocation location)
{
    switch ((int) location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location.id;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CU_DEVICE_CPU;
    default:
        return NOWHERE;
    }
}

static CUresult check(CUdeviceptr address, size_t bytes, int ordinal)
{
    struct memory_info info;

    REQUIRE(bytes && memory_find(address, &info) && info.kind == MEMORY_MANAGED &&
            info.base + info.size - address >= bytes);
    if (ordinal != CU_DEVICE_CPU && process_device(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

static CUresult prefetch(struct stream *stream, CUdeviceptr address, size_t bytes, int ordinal)
{
    CUresult result = check(address, bytes, ordinal);
    struct work_order order = {.engine = ENGINE_DEVICE_TO_HOST};

    if (result == CUDA_SUCCESS)
        result = capture_refusal(stream);
    if (result == CUDA_SUCCESS && ordinal != CU_DEVICE_CPU) {
        order.engine = ENGINE_HOST_TO_DEVICE;
        result = memory_copy_to(address, (uint32_t) process_device(ordinal));
    }
    if (result != CUDA_SUCCESS)
        return result;
    order.ns = (uint64_t) ((double) bytes * 1e9 /
                           (double) process.machine->config.devices[stream->device].pcie_bandwidth);
    return queue_submit(stream, &order, NULL);
}

STREAM_CALL(cuMemPrefetchAsync,
            (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
            prefetch(stream, devPtr, count, dstDevice))
STREAM_CALL(cuMemPrefetchAsync_v2,
            (CUdeviceptr devPtr, size_t count, CUmemLocation location,
             unsigned int flags __attribute__((unused)), CUstream hStream),
            prefetch(stream, devPtr, count, ordinal_at(location)))

/* A batch: places[k] applies to the ranges from indices[k] on. */
struct batch {
    CUdeviceptr *addresses;
    size_t *sizes;
    size_t count;
    CUmemLocation *places;
    size_t *indices;
    size_t place_count;
};

static int ordinal_in(const struct batch *batch, size_t range)
{
    size_t place = 0;

    while (place + 1 < batch->place_count && batch->indices[place + 1] <= range)
        place++;
    return ordinal_at(batch->places[place]);
}

static bool is_ordered(const struct batch *batch)
{
    for (size_t i = 1; i < batch->place_count; i++)
        if (batch->indices[i] <= batch->indices[i - 1])
            return false;
    return !batch->indices[0] && batch->indices[batch->place_count - 1] < batch->count;
}

/* All ranges are checked before the first one moves. */
static CUresult prefetch_batch(struct stream *stream, const struct batch *batch,
                               unsigned long long flags)
{
    CUresult result = CUDA_SUCCESS;

    REQUIRE(batch->addresses && batch->sizes && batch->places && batch->indices && !flags);
    REQUIRE(batch->place_count && batch->place_count <= batch->count && is_ordered(batch));
    REQUIRE(stream != stream->work->legacy);
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result = check(batch->addresses[i], batch->sizes[i], ordinal_in(batch, i));
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result = prefetch(stream, batch->addresses[i], batch->sizes[i], ordinal_in(batch, i));
    return result;
}

/* Discarded memory keeps its bytes, which programs must not read. */
#define BATCH_CALL(name)                                                                        \
    STREAM_CALL(name,                                                                           \
                (CUdeviceptr * dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs, \
                 size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,     \
                 CUstream hStream),                                                             \
                prefetch_batch(stream,                                                          \
                               &(struct batch) {dptrs, sizes, count, prefetchLocs,              \
                                                prefetchLocIdxs, numPrefetchLocs},              \
                               flags))

BATCH_CALL(cuMemPrefetchBatchAsync)
BATCH_CALL(cuMemDiscardAndPrefetchBatchAsync)

/* Advice moves nothing until a device touches the memory, which no kernel here does. */
CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    ENTER();
    REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    return check(devPtr, count, advice <= CU_MEM_ADVISE_UNSET_READ_MOSTLY ? CU_DEVICE_CPU : device);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location)
{
    return cuMemAdvise(devPtr, count, advice, ordinal_at(location));
}
