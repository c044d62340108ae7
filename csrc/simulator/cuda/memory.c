/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- the calls that allocate, free and describe device memory. */
#include "memory.h"

#include "cuda/capture.h"
#include "queue.h"

#define PITCH_UNIT 512

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct work_context *work;
    CUresult refused;

    ENTER_CONTEXT(&work);
    REQUIRE(dptr);
    refused = capture_prohibits();
    return refused == CUDA_SUCCESS ? memory_allocate(work, MEMORY_DEVICE, bytesize, dptr) : refused;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    struct work_context *work;
    CUresult result;
    size_t pitch, bytes;

    ENTER_CONTEXT(&work);
    REQUIRE(dptr && pPitch && WidthInBytes && Height);
    REQUIRE(ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16);
    if (__builtin_add_overflow(WidthInBytes, PITCH_UNIT - 1, &pitch))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pitch = pitch / PITCH_UNIT * PITCH_UNIT;
    if (__builtin_mul_overflow(pitch, Height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = memory_allocate(work, MEMORY_DEVICE, bytes, dptr);
    if (result == CUDA_SUCCESS)
        *pPitch = pitch;
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct work_context *work;
    CUresult result;

    ENTER_CONTEXT(&work);
    REQUIRE(dptr && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST));
    result = memory_allocate(work, MEMORY_MANAGED, bytesize, dptr);
    if (result == CUDA_SUCCESS)
        memory_set_flags(*dptr, flags);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct memory_info info;
    struct work_context *work;

    ENTER_CONTEXT(&work);
    if (!dptr)
        return CUDA_SUCCESS;
    if (!queue_is_immediate(work->device) && memory_find(dptr, &info))
        queue_drain(info.device); /* work that may still use it finishes first */
    if (memory_free(dptr, MEMORY_DEVICE) == CUDA_SUCCESS ||
        memory_free(dptr, MEMORY_MANAGED) == CUDA_SUCCESS ||
        memory_free(dptr, MEMORY_EXTERNAL) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return pool_free_now(dptr);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct work_context *work;
    uint64_t free_bytes, total_bytes;

    ENTER_CONTEXT(&work);
    memory_get_info(work->device, &free_bytes, &total_bytes);
    if (free)
        *free = free_bytes;
    if (total)
        *total = total_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    const struct device_config *config;

    ENTER();
    REQUIRE(bytes);
    config = process_device_config(dev);
    if (!config)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = config->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct memory_info info;

    ENTER();
    if (!memory_find(dptr, &info))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = info.base;
    if (psize)
        *psize = info.size;
    return CUDA_SUCCESS;
}
