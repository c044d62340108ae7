/* SPDX-License-Identifier: Apache-2.0 */
/* dmabuf.c -- dma-buf descriptors of ranges of device memory (cuMemGetHandleForAddressRange).
 *
 * A dma-buf keeps the memory of its range until its last descriptor is closed, in whichever
 * process, or its last mapping ends: also if the memory was freed, or its process has ended. No
 * call of this driver imports it.
 */
#include <unistd.h>

#include "cuda/physical.h"
#include "share.h"

enum { PAGE = 4096 };

/* What all physical memory of a range must have in common. */
static bool is_alike(const struct physical *one, const struct physical *other)
{
    return one->device == other->device && one->properties.type == other->properties.type &&
           one->properties.requestedHandleTypes == other->properties.requestedHandleTypes &&
           one->properties.allocFlags.compressionType ==
               other->properties.allocFlags.compressionType &&
           one->properties.allocFlags.usage == other->properties.allocFlags.usage;
}

static CUresult keep(int fd, int share)
{
    if (share == SHARE_NONE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return share_keep(process.machine, fd, share, share_read(process.machine, share)->id)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

/* Let the descriptor keep all memory that is mapped to the range. */
static CUresult keep_mapped(int fd, uint64_t address, uint64_t size)
{
    struct physical *first = NULL, *before = NULL;
    CUresult result = CUDA_SUCCESS;
    uint64_t step;

    pthread_rwlock_wrlock(&vmm_lock);
    for (uint64_t at = 0; result == CUDA_SUCCESS && at < size; at += step) {
        uint64_t left = PHYSICAL_GRANULARITY - (address + at) % PHYSICAL_GRANULARITY, offset;
        struct physical *physical = vmm_physical(address + at, 1, &offset);

        step = left < size - at ? left : size - at;
        if (physical && physical == before)
            continue;
        before = physical;
        first = first ? first : physical;
        if (!physical || !is_alike(physical, first))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (physical->kind != PHYSICAL_DEVICE)
            result = CUDA_ERROR_NOT_SUPPORTED;
        else
            result =
                keep(fd, physical->backing ? memory_share(physical->backing) : physical->share);
    }
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

static CUresult keep_range(int fd, uint64_t address, uint64_t size)
{
    struct memory_info info;

    if (!memory_find(address, &info))
        return CUDA_ERROR_INVALID_VALUE;
    if (info.kind == MEMORY_VIRTUAL)
        return keep_mapped(fd, address, size);
    if (info.kind == MEMORY_HOST)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (info.kind != MEMORY_DEVICE ||
        size > (info.size + PAGE - 1) / PAGE * PAGE - (address - info.base))
        return CUDA_ERROR_INVALID_VALUE;
    return keep(fd, memory_share(info.base));
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                       CUmemRangeHandleType handleType, unsigned long long flags)
{
    CUresult result;
    int fd;

    ENTER();
    REQUIRE(handle && dptr && dptr % PAGE == 0 && size && size % PAGE == 0);
    REQUIRE(handleType == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
    REQUIRE(!(flags & ~(unsigned long long) CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE));
    /* The flag is for platforms where the other mapping is not by PCIe. */
    if (flags || !process.machine->config.law.dma_buf)
        return CUDA_ERROR_NOT_SUPPORTED;
    fd = share_buffer(process.machine);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = keep_range(fd, dptr, size);
    if (result == CUDA_SUCCESS)
        *(int *) handle = fd;
    else
        close(fd);
    return result;
}
