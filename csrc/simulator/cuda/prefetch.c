/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch.c -- prefetch of managed memory to devices other than the one that allocated it.
 *
 * The simulator does not track pages: it charges all of the memory to each device to which any of
 * it was prefetched, until the memory is freed. On a GPU, read-mostly memory may occupy several
 * devices in the same way.
 */
#include "cuda/capture.h"
#include "cuda/entry.h"
#include "memory.h"

#define UNKNOWN_ORDINAL (-2)

/* The device's ordinal, CU_DEVICE_CPU for host memory, or UNKNOWN_ORDINAL. */
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
        return UNKNOWN_ORDINAL;
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

/* A batch: locations[k] applies to the ranges from indices[k] to indices[k + 1] - 1. */
struct batch {
    CUdeviceptr *addresses;
    size_t *sizes;
    size_t count;
    CUmemLocation *locations;
    size_t *indices;
    size_t location_count;
};

static int ordinal_in(const struct batch *batch, size_t range)
{
    size_t k = 0;

    while (k + 1 < batch->location_count && batch->indices[k + 1] <= range)
        k++;
    return ordinal_at(batch->locations[k]);
}

/* Do the indices start at 0, ascend, and name ranges of the batch? */
static bool has_valid_indices(const struct batch *batch)
{
    for (size_t i = 1; i < batch->location_count; i++)
        if (batch->indices[i] <= batch->indices[i - 1])
            return false;
    return !batch->indices[0] && batch->indices[batch->location_count - 1] < batch->count;
}

/* Check all ranges before any of them is prefetched. */
static CUresult prefetch_batch(struct stream *stream, const struct batch *batch,
                               unsigned long long flags)
{
    CUresult result = CUDA_SUCCESS;

    REQUIRE(batch->addresses && batch->sizes && batch->locations && batch->indices && !flags);
    REQUIRE(batch->location_count && batch->location_count <= batch->count &&
            has_valid_indices(batch));
    REQUIRE(stream != stream->work->legacy);
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result = check(batch->addresses[i], batch->sizes[i], ordinal_in(batch, i));
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result = prefetch(stream, batch->addresses[i], batch->sizes[i], ordinal_in(batch, i));
    return result;
}

/* A discard changes nothing here: CUDA leaves the bytes of discarded memory undefined. */
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

/* Advice takes effect when a kernel accesses the memory; simulated kernels access none. */
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
