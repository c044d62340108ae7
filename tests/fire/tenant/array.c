/* SPDX-License-Identifier: Apache-2.0 */
/* array.c -- arrays and mipmapped arrays, and sparse ones to which memory is mapped. */
#include "families.h"

static CUDA_ARRAY3D_DESCRIPTOR shape(struct hand *hand, unsigned int flags)
{
    static const CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF,
                                             CU_AD_FORMAT_FLOAT};

    return (CUDA_ARRAY3D_DESCRIPTOR) {
        .Width = 1 + hand_pick(hand, 2048),
        .Height = hand_pick(hand, 1024),
        .Format = formats[hand_pick(hand, LENGTH(formats))],
        .NumChannels = 1u << hand_pick(hand, 3),
        .Flags = flags,
    };
}

static bool take_array(struct hand *hand, struct item *item)
{
    CUDA_ARRAY3D_DESCRIPTOR wanted = shape(hand, 0);

    if (wanted.Height && hand_chance(hand, 2)) {
        wanted.Depth = 1 + hand_pick(hand, 8);
        if (hand_chance(hand, 2))
            wanted.Flags = CUDA_ARRAY3D_LAYERED;
    }
    return GOT(cuArray3DCreate(&item->array, &wanted));
}

static void give_array(struct hand *hand, struct item *item)
{
    MUST(cuArrayDestroy(item->array));
}

static bool take_mipmap(struct hand *hand, struct item *item)
{
    CUDA_ARRAY3D_DESCRIPTOR wanted = shape(hand, 0);

    return GOT(cuMipmappedArrayCreate(&item->mipmap, &wanted, 1 + hand_pick(hand, 8)));
}

static void give_mipmap(struct hand *hand, struct item *item)
{
    MUST(cuMipmappedArrayDestroy(item->mipmap));
}

static CUarrayMapInfo tile_of(const struct item *item, CUmemOperationType operation)
{
    return (CUarrayMapInfo) {
        .resourceType = CU_RESOURCE_TYPE_ARRAY,
        .resource.array = item->array,
        .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        .subresource.sparseLevel = {.extentWidth = 128, .extentHeight = 128, .extentDepth = 1},
        .memOperationType = operation,
        .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
        .deviceBitMask = 1u << item->device,
    };
}

/* The tile keeps its memory after the handle is released. */
static bool take_sparse(struct hand *hand, struct item *item)
{
    CUDA_ARRAY3D_DESCRIPTOR wanted = {.Width = 4096,
                                      .Height = 4096,
                                      .Format = CU_AD_FORMAT_FLOAT,
                                      .NumChannels = 1,
                                      .Flags = CUDA_ARRAY3D_SPARSE};
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = place_on(item->device)};
    CUarrayMapInfo tile;

    if (!GOT(cuArray3DCreate(&item->array, &wanted)))
        return false;
    tile = tile_of(item, CU_MEM_OPERATION_TYPE_MAP);
    if (!GOT(cuMemCreate(&tile.memHandle.memHandle, PAGE, &props, 0))) {
        MUST(cuArrayDestroy(item->array));
        return false;
    }
    MUST(cuMemMapArrayAsync(&tile, 1, hand->stream));
    MUST(cuMemRelease(tile.memHandle.memHandle));
    return true;
}

static void give_sparse(struct hand *hand, struct item *item)
{
    CUarrayMapInfo tile = tile_of(item, CU_MEM_OPERATION_TYPE_UNMAP);

    if (hand_chance(hand, 2))
        MUST(cuMemMapArrayAsync(&tile, 1, hand->stream));
    MUST(cuArrayDestroy(item->array));
}

const struct family family_array = {.name = "array",
                                    .take = take_array,
                                    .give = give_array,
                                    .needs_context = true,
                                    .goes_with_context = true};
const struct family family_mipmap = {.name = "mipmap",
                                     .take = take_mipmap,
                                     .give = give_mipmap,
                                     .needs_context = true,
                                     .goes_with_context = true};
const struct family family_sparse = {
    .name = "sparse", .take = take_sparse, .give = give_sparse, .needs_context = true};
