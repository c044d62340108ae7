/* SPDX-License-Identifier: Apache-2.0 */
/* array.c -- makes and describes CUDA arrays and mipmapped arrays. */
#include "cuda/array.h"

#include <stdlib.h>

enum { ARRAY_MAGIC = 0x61727279, MIPMAP_MAGIC = 0x6d697070, LEVELS = 32 };

#define LEVEL_UNIT UINT64_C(512)

struct mipmap {
    uint32_t magic;
    unsigned int count;
    struct array_memory *memory;
    struct array *levels[LEVELS];
};

struct array *array_find(CUarray handle)
{
    struct array *array = (struct array *) handle;

    if (!array || (uintptr_t) handle % sizeof(void *) || array->magic != ARRAY_MAGIC)
        return NULL;
    return array;
}

static struct mipmap *find_mipmap(CUmipmappedArray handle)
{
    struct mipmap *mipmap = (struct mipmap *) handle;

    if (!mipmap || (uintptr_t) handle % sizeof(void *) || mipmap->magic != MIPMAP_MAGIC)
        return NULL;
    return mipmap;
}

struct array_memory *array_memory_of(CUarray handle)
{
    const struct array *array = array_find(handle);

    return array && !array->is_level ? array->memory : NULL;
}

struct array_memory *array_mipmap_memory(CUmipmappedArray handle)
{
    const struct mipmap *mipmap = find_mipmap(handle);

    return mipmap ? mipmap->memory : NULL;
}

/* Bytes of all levels, and where each begins. */
static bool lay_out(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels,
                    struct array_shape *shapes, uint64_t *offsets, uint64_t *bytes)
{
    *bytes = 0;
    for (unsigned int level = 0; level < levels; level++) {
        CUDA_ARRAY3D_DESCRIPTOR part = array_shape_level(descriptor, level);

        if (!array_shape(&part, &shapes[level]))
            return false;
        offsets[level] = *bytes;
        if (__builtin_add_overflow(*bytes, shapes[level].padded, bytes) ||
            *bytes > UINT64_MAX - LEVEL_UNIT)
            return false;
        *bytes = (*bytes + LEVEL_UNIT - 1) / LEVEL_UNIT * LEVEL_UNIT;
    }
    return true;
}

static CUresult make_memory(struct work_context *work, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                            unsigned int levels, uint64_t bytes, struct array_memory **made)
{
    struct array_memory *memory = calloc(1, sizeof(*memory));
    CUresult result;

    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct array_memory) {
        .bytes = bytes,
        .kind = descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
                    ? MEMORY_UNBACKED
                    : MEMORY_ARRAY,
        .descriptor = *descriptor,
        .levels = levels,
    };
    result = memory_allocate(work, memory->kind, bytes, &memory->address);
    if (result != CUDA_SUCCESS)
        free(memory);
    else
        *made = memory;
    return result;
}

static CUresult free_memory(struct array_memory *memory)
{
    CUresult result = memory_free(memory->address, memory->kind);

    arraymap_free(memory);
    free(memory);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Level number level of the memory, which has the shape and begins at offset. */
static struct array *make_level(struct work_context *work, struct array_memory *memory,
                                unsigned int level, const struct array_shape *shape,
                                uint64_t offset)
{
    struct array *array = calloc(1, sizeof(*array));

    if (array)
        *array = (struct array) {
            .magic = ARRAY_MAGIC,
            .device = work->device,
            .address = memory->address + offset,
            .row_bytes = shape->row_bytes,
            .slice_bytes = shape->slice_bytes,
            .bytes = shape->bytes,
            .descriptor = array_shape_level(&memory->descriptor, level),
            .memory = memory,
        };
    return array;
}

static void free_level(struct array *array)
{
    if (array)
        array->magic = 0;
    free(array);
}

static CUresult create(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                       struct work_context *work)
{
    struct array_memory *memory;
    struct array_shape shape;
    uint64_t offset, bytes;
    struct array *array;
    CUresult result;

    if (!lay_out(descriptor, 1, &shape, &offset, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = make_memory(work, descriptor, 1, bytes, &memory);
    if (result != CUDA_SUCCESS)
        return result;
    array = make_level(work, memory, 0, &shape, 0);
    if (!array) {
        free_memory(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUarray) array;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pAllocateArray);
    return create(pHandle, pAllocateArray, work);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pAllocateArray);
    return create(pHandle,
                  &(CUDA_ARRAY3D_DESCRIPTOR) {
                      .Width = pAllocateArray->Width,
                      .Height = pAllocateArray->Height,
                      .Format = pAllocateArray->Format,
                      .NumChannels = pAllocateArray->NumChannels,
                  },
                  work);
}

CUresult cuArrayDestroy(CUarray hArray)
{
    struct array_memory *memory;
    struct array *array;

    ENTER();
    array = array_find(hArray);
    if (!array || array->is_level)
        return CUDA_ERROR_INVALID_HANDLE;
    memory = array->memory;
    free_level(array);
    return free_memory(memory);
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

/* --- mipmapped arrays ------------------------------------------------------------------------- */

static void free_mipmap(struct mipmap *mipmap)
{
    while (mipmap->count)
        free_level(mipmap->levels[--mipmap->count]);
    mipmap->magic = 0;
    free(mipmap);
}

static CUresult create_mipmap(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                              unsigned int levels, struct work_context *work)
{
    struct array_shape shapes[LEVELS];
    uint64_t offsets[LEVELS], bytes;
    struct mipmap *mipmap;
    CUresult result;

    if (levels > array_shape_most_levels(descriptor))
        levels = array_shape_most_levels(descriptor);
    if (levels > LEVELS || !lay_out(descriptor, levels, shapes, offsets, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    mipmap = calloc(1, sizeof(*mipmap));
    if (!mipmap)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->magic = MIPMAP_MAGIC;
    result = make_memory(work, descriptor, levels, bytes, &mipmap->memory);
    for (; result == CUDA_SUCCESS && mipmap->count < levels; mipmap->count++) {
        unsigned int level = mipmap->count;

        mipmap->levels[level] =
            make_level(work, mipmap->memory, level, &shapes[level], offsets[level]);
        if (mipmap->levels[level])
            mipmap->levels[level]->is_level = true;
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        *handle = (CUmipmappedArray) mipmap;
        return result;
    }
    if (mipmap->memory)
        free_memory(mipmap->memory);
    free_mipmap(mipmap);
    return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(pHandle && pMipmappedArrayDesc && numMipmapLevels);
    return create_mipmap(pHandle, pMipmappedArrayDesc, numMipmapLevels, work);
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
    struct array_memory *memory;
    struct mipmap *mipmap;

    ENTER();
    mipmap = find_mipmap(hMipmappedArray);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    memory = mipmap->memory;
    free_mipmap(mipmap);
    return free_memory(memory);
}
