/* SPDX-License-Identifier: Apache-2.0 */
/* arraymap.c -- sparse and deferred-mapping arrays, and the memory mapped to them.
 *
 * Mapped memory is held until it is unmapped, mapped over, or the array is gone. The bytes of such
 * an array are its own all the same: two arrays over one piece of memory do not share contents.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/array.h"
#include "cuda/entry.h"
#include "cuda/physical.h"

struct arraymap {
    struct arraymap *next;
    CUarrayMapInfo where; /* only the fields that name a part of the array */
    struct physical *physical;
};

/* The stream has reached the unmapping: release the memory. */
static void apply_unpin(struct effect *effect)
{
    struct physical *physical = (struct physical *) effect->arguments[0];

    pthread_rwlock_wrlock(&vmm_lock);
    physical->pins--;
    physical_let_go(physical);
    pthread_rwlock_unlock(&vmm_lock);
}

void arraymap_free(struct array_memory *memory)
{
    pthread_rwlock_wrlock(&vmm_lock);
    while (memory->mapped) {
        struct arraymap *mapped = memory->mapped;

        memory->mapped = mapped->next;
        mapped->physical->pins--;
        physical_let_go(mapped->physical);
        free(mapped);
    }
    pthread_rwlock_unlock(&vmm_lock);
}

static struct array_memory *memory_of(const CUarrayMapInfo *info)
{
    struct array_memory *memory = NULL;

    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY)
        memory = array_memory_of(info->resource.array);
    else if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        memory = array_mipmap_memory(info->resource.mipmap);
    return memory && memory->kind == MEMORY_UNBACKED ? memory : NULL;
}

/* The mapped part of the array; with deferred mapping always the whole array. */
static CUarrayMapInfo where_of(const CUarrayMapInfo *info, const struct array_memory *memory)
{
    CUarrayMapInfo where;

    memset(&where, 0, sizeof(where));
    if (memory->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)
        return where;
    where.subresourceType = info->subresourceType;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        where.subresource.miptail.layer = info->subresource.miptail.layer;
        where.subresource.miptail.offset = info->subresource.miptail.offset;
        where.subresource.miptail.size = info->subresource.miptail.size;
    } else {
        where.subresource.sparseLevel = info->subresource.sparseLevel;
    }
    return where;
}

/* Lock held. Remove and return the memory mapped there; NULL: none. */
static struct physical *take_out(struct array_memory *memory, const CUarrayMapInfo *where)
{
    for (struct arraymap **link = &memory->mapped; *link; link = &(*link)->next)
        if (memcmp(&(*link)->where, where, sizeof(*where)) == 0) {
            struct arraymap *mapped = *link;
            struct physical *physical = mapped->physical;

            *link = mapped->next;
            free(mapped);
            return physical;
        }
    return NULL;
}

static CUresult check(const CUarrayMapInfo *info)
{
    const struct physical *physical;

    REQUIRE(memory_of(info) && !info->flags &&
            (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP ||
             info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP));
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
        return CUDA_SUCCESS;
    physical = physical_find(info->memHandle.memHandle);
    REQUIRE(info->memHandleType == CU_MEM_HANDLE_TYPE_GENERIC && physical &&
            physical->kind == PHYSICAL_DEVICE && info->offset < physical->size);
    return CUDA_SUCCESS;
}

static CUresult apply(struct stream *stream, const CUarrayMapInfo *info)
{
    struct array_memory *memory = memory_of(info);
    CUarrayMapInfo where = where_of(info, memory);
    bool is_map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    struct arraymap *made = is_map ? calloc(1, sizeof(*made)) : NULL;
    struct physical *before;
    struct work_order order = {.engine = ENGINE_NONE, .effect = {.apply = apply_unpin}};

    if (is_map && !made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&vmm_lock);
    before = take_out(memory, &where);
    if (is_map) {
        *made = (struct arraymap) {
            .next = memory->mapped,
            .where = where,
            .physical = physical_find(info->memHandle.memHandle),
        };
        made->physical->pins++;
        memory->mapped = made;
    }
    pthread_rwlock_unlock(&vmm_lock);
    if (!before)
        return CUDA_SUCCESS;
    order.effect.arguments[0] = (uint64_t) before;
    return queue_submit(stream, &order, NULL);
}

static CUresult map_all(struct stream *stream, const CUarrayMapInfo *list, unsigned int count)
{
    REQUIRE(list && count);
    for (unsigned int i = 0; i < count; i++) {
        CUresult result = check(&list[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    for (unsigned int i = 0; i < count; i++) {
        CUresult result = apply(stream, &list[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

STREAM_CALL(cuMemMapArrayAsync,
            (CUarrayMapInfo * mapInfoList, unsigned int count, CUstream hStream),
            map_all(stream, mapInfoList, count))

/* --- arguments of a mapping ---------------------------------------------------------------------
 */

static CUresult require(const struct array_memory *memory, CUdevice ordinal,
                        CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements)
{
    REQUIRE(requirements);
    if (!memory)
        return CUDA_ERROR_INVALID_HANDLE;
    if (process_device(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(memory->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING);
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS) {
        .size = memory_round(memory->bytes),
        .alignment = 512,
    };
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                      CUarray array, CUdevice device)
{
    ENTER();
    return require(array_memory_of(array), device, memoryRequirements);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device)
{
    ENTER();
    return require(array_mipmap_memory(mipmap), device, memoryRequirements);
}

static CUresult tell_tiles(const struct array_memory *memory,
                           CUDA_ARRAY_SPARSE_PROPERTIES *properties)
{
    REQUIRE(properties);
    if (!memory)
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(memory->descriptor.Flags & CUDA_ARRAY3D_SPARSE);
    array_shape_tiles(&memory->descriptor, memory->levels, properties);
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array)
{
    ENTER();
    return tell_tiles(array_memory_of(array), sparseProperties);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                             CUmipmappedArray mipmap)
{
    ENTER();
    return tell_tiles(array_mipmap_memory(mipmap), sparseProperties);
}
