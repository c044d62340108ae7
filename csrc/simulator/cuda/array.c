/* SPDX-License-Identifier: Apache-2.0 */
/* array.c -- makes and describes CUDA arrays and mipmapped arrays. */
#include "cuda/array.h"

#include <stdlib.h>

#include "memory.h"

enum { ARRAY_MAGIC = 0x61727279, MIPMAP_MAGIC = 0x6d697070, LEVELS = 32 };

struct mipmap {
    uint32_t magic;
    unsigned int count;
    struct array *levels[LEVELS];
};

struct array *array_find(CUarray handle)
{
    struct array *array = (struct array *) handle;

    if (!array || (uintptr_t) handle % sizeof(void *) || array->magic != ARRAY_MAGIC)
        return NULL;
    return array;
}

static unsigned int bytes_of(CUarray_format format)
{
    switch ((int) format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static CUresult make(struct work_context *work, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                     struct array **made)
{
    uint64_t element = (uint64_t) bytes_of(descriptor->Format) * descriptor->NumChannels;
    uint64_t height = descriptor->Height ? descriptor->Height : 1;
    uint64_t depth = descriptor->Depth ? descriptor->Depth : 1;
    struct array *array;
    CUresult result;
    uint64_t bytes;

    if (!element || !descriptor->Width ||
        (descriptor->NumChannels != 1 && descriptor->NumChannels != 2 &&
         descriptor->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(descriptor->Width * element, height, &bytes) ||
        __builtin_mul_overflow(bytes, depth, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    array = calloc(1, sizeof(*array));
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = (struct array) {
        .magic = ARRAY_MAGIC,
        .device = work->device,
        .row_bytes = descriptor->Width * element,
        .slice_bytes = descriptor->Width * element * height,
        .bytes = bytes,
        .descriptor = *descriptor,
    };
    result = memory_allocate(work, MEMORY_ARRAY, bytes, &array->address);
    if (result != CUDA_SUCCESS)
        free(array);
    else
        *made = array;
    return result;
}

static CUresult destroy(struct array *array)
{
    CUresult result = memory_free(array->address, MEMORY_ARRAY);

    array->magic = 0;
    free(array);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    struct work_context *work;
    struct array *array;
    CUresult result;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pAllocateArray);
    result = make(work, pAllocateArray, &array);
    if (result == CUDA_SUCCESS)
        *pHandle = (CUarray) array;
    return result;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    struct work_context *work;
    struct array *array;
    CUresult result;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pAllocateArray);
    result = make(work,
                  &(CUDA_ARRAY3D_DESCRIPTOR) {
                      .Width = pAllocateArray->Width,
                      .Height = pAllocateArray->Height,
                      .Format = pAllocateArray->Format,
                      .NumChannels = pAllocateArray->NumChannels,
                  },
                  &array);
    if (result == CUDA_SUCCESS)
        *pHandle = (CUarray) array;
    return result;
}

CUresult cuArrayDestroy(CUarray hArray)
{
    struct array *array;

    ENTER();
    array = array_find(hArray);
    if (!array || array->whole)
        return CUDA_ERROR_INVALID_HANDLE;
    return destroy(array);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    const struct array *array;

    ENTER();
    REQUIRE(pArrayDescriptor);
    array = array_find(hArray);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    *pArrayDescriptor = array->descriptor;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    const struct array *array;

    ENTER();
    REQUIRE(pArrayDescriptor);
    array = array_find(hArray);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR) {
        .Width = array->descriptor.Width,
        .Height = array->descriptor.Height,
        .Format = array->descriptor.Format,
        .NumChannels = array->descriptor.NumChannels,
    };
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                      CUarray array, CUdevice device)
{
    const struct array *found;

    ENTER();
    REQUIRE(memoryRequirements);
    found = array_find(array);
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS) {
        .size = memory_round(found->bytes),
        .alignment = 512,
    };
    return CUDA_SUCCESS;
}

/* --- mipmapped arrays ------------------------------------------------------------------------- */

static size_t halve(size_t extent, unsigned int level)
{
    size_t smaller = extent >> level;

    return extent && !smaller ? 1 : smaller;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    struct work_context *work;
    struct mipmap *mipmap;
    CUresult result = CUDA_SUCCESS;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pMipmappedArrayDesc && numMipmapLevels && numMipmapLevels <= LEVELS);
    mipmap = calloc(1, sizeof(*mipmap));
    if (!mipmap)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->magic = MIPMAP_MAGIC;
    while (result == CUDA_SUCCESS && mipmap->count < numMipmapLevels) {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = *pMipmappedArrayDesc;

        descriptor.Width = halve(descriptor.Width, mipmap->count);
        descriptor.Height = halve(descriptor.Height, mipmap->count);
        descriptor.Depth = halve(descriptor.Depth, mipmap->count);
        result = make(work, &descriptor, &mipmap->levels[mipmap->count]);
        if (result == CUDA_SUCCESS)
            mipmap->levels[mipmap->count++]->whole = (CUmipmappedArray) mipmap;
    }
    if (result == CUDA_SUCCESS) {
        *pHandle = (CUmipmappedArray) mipmap;
        return CUDA_SUCCESS;
    }
    while (mipmap->count)
        destroy(mipmap->levels[--mipmap->count]);
    free(mipmap);
    return result;
}

static struct mipmap *find_mipmap(CUmipmappedArray handle)
{
    struct mipmap *mipmap = (struct mipmap *) handle;

    if (!mipmap || (uintptr_t) handle % sizeof(void *) || mipmap->magic != MIPMAP_MAGIC)
        return NULL;
    return mipmap;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level)
{
    const struct mipmap *mipmap;

    ENTER();
    REQUIRE(pLevelArray);
    mipmap = find_mipmap(hMipmappedArray);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    if (level >= mipmap->count)
        return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = (CUarray) mipmap->levels[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    struct mipmap *mipmap;

    ENTER();
    mipmap = find_mipmap(hMipmappedArray);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    while (mipmap->count)
        destroy(mipmap->levels[--mipmap->count]);
    mipmap->magic = 0;
    free(mipmap);
    return CUDA_SUCCESS;
}
