/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.c -- sizes of arrays, arrays without memory, and memory that is mapped to them. */
#include "check.h"

#include <stdbool.h>

#define PAGE (2 * MIB)

static size_t before;

static CUDA_ARRAY3D_DESCRIPTOR shape_of(size_t width, size_t height, size_t depth,
                                        CUarray_format format, unsigned int channels,
                                        unsigned int flags)
{
    return (CUDA_ARRAY3D_DESCRIPTOR) {.Width = width,
                                      .Height = height,
                                      .Depth = depth,
                                      .Format = format,
                                      .NumChannels = channels,
                                      .Flags = flags};
}

/* Bytes that an array takes, which must equal the size reported for its sparse twin. */
static size_t taken(CUDA_ARRAY3D_DESCRIPTOR shape)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUarray array, twin;
    size_t bytes;

    CHECK(cuArray3DCreate(&array, &shape));
    bytes = before - free_bytes();
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&requirements, array, 0));
    shape.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CHECK(cuArray3DCreate(&twin, &shape));
    EXPECT(before - free_bytes() == bytes);
    CHECK(cuArrayGetMemoryRequirements(&requirements, twin, 0));
    EXPECT(requirements.size == bytes);
    CHECK(cuArrayDestroy(array));
    CHECK(cuArrayDestroy(twin));
    EXPECT(before == free_bytes());
    return bytes;
}

static void sizes(void)
{
    CUDA_ARRAY3D_DESCRIPTOR wrong;
    CUarray array;

    EXPECT(taken(shape_of(1, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0)) == 512);
    EXPECT(taken(shape_of(100, 100, 0, CU_AD_FORMAT_FLOAT, 1, 0)) == 448 * 104 / 512 * 512);
    EXPECT(taken(shape_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0)) == 16 * MIB);
    EXPECT(taken(shape_of(1024, 1024, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0)) == 512 * 1024);
    EXPECT(taken(shape_of(1024, 1024, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0)) == 2 * MIB);
    EXPECT(taken(shape_of(1024, 0, 64, CU_AD_FORMAT_HALF, 1, CUDA_ARRAY3D_LAYERED)) == 128 * 1024);
    EXPECT(taken(shape_of(256, 256, 6, CU_AD_FORMAT_UNORM_INT16X4, 4, CUDA_ARRAY3D_CUBEMAP)) ==
           4 * MIB);
    wrong = shape_of(256, 256, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, &wrong));
    wrong = shape_of(256, 256, 0, CU_AD_FORMAT_BC1_UNORM, 1, 0);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, &wrong));
    wrong = shape_of(SIZE_MAX, 1, 0, CU_AD_FORMAT_FLOAT, 1, 0);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, &wrong));
}

static void levels(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape =
        shape_of(1024, 1024, 8, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED);
    CUDA_ARRAY3D_DESCRIPTOR level;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUmipmappedArray mipmap, twin;
    CUarray array;

    CHECK(cuMipmappedArrayCreate(&mipmap, &shape, 20)); /* no more than there can be */
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&array, mipmap, 11));
    CHECK(cuMipmappedArrayGetLevel(&array, mipmap, 10));
    CHECK(cuArray3DGetDescriptor(&level, array));
    EXPECT(level.Width == 1 && level.Height == 1 && level.Depth == 8);
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
    shape.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CHECK(cuMipmappedArrayCreate(&twin, &shape, 20));
    CHECK(cuMipmappedArrayGetMemoryRequirements(&requirements, twin, 0));
    EXPECT(requirements.size == before - free_bytes());
    EXPECT(requirements.size > 42 * MIB && requirements.size < 46 * MIB); /* a third more */
    CHECK(cuMipmappedArrayDestroy(mipmap));
    CHECK(cuMipmappedArrayDestroy(twin));
    EXPECT(before == free_bytes());
}

static CUmemGenericAllocationHandle page(void)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;

    CHECK(cuMemCreate(&handle, PAGE, &props, 0));
    return handle;
}

/* Map a new page to the tile, which keeps it. */
static void map_tile(CUarray array, unsigned int x, bool mapped)
{
    CUarrayMapInfo info = {
        .resourceType = CU_RESOURCE_TYPE_ARRAY,
        .resource.array = array,
        .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        .subresource.sparseLevel = {.offsetX = x,
                                    .extentWidth = 128,
                                    .extentHeight = 128,
                                    .extentDepth = 1},
        .memOperationType = mapped ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
        .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
        .deviceBitMask = 1,
    };

    if (mapped)
        info.memHandle.memHandle = page();
    CHECK(cuMemMapArrayAsync(&info, 1, NULL));
    if (mapped)
        CHECK(cuMemRelease(info.memHandle.memHandle));
    CHECK(cuCtxSynchronize());
}

static void tiles(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape =
        shape_of(65536, 65536, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE);
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    CUarrayMapInfo wrong = {.resourceType = CU_RESOURCE_TYPE_ARRAY};
    CUarray array, plain;

    CHECK(cuArray3DCreate(&array, &shape));
    EXPECT(before == free_bytes());
    CHECK(cuArrayGetSparseProperties(&properties, array));
    EXPECT(properties.tileExtent.width == 128 && properties.tileExtent.height == 128 &&
           properties.tileExtent.depth == 1);
    map_tile(array, 0, true);
    map_tile(array, 128, true);
    EXPECT(before - free_bytes() == 2 * PAGE);
    map_tile(array, 128, true); /* over what was there */
    EXPECT(before - free_bytes() == 2 * PAGE);
    map_tile(array, 0, false);
    EXPECT(before - free_bytes() == PAGE);
    CHECK(cuArrayDestroy(array));
    EXPECT(before == free_bytes());

    shape = shape_of(16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0);
    CHECK(cuArray3DCreate(&plain, &shape));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&properties, plain));
    wrong.resource.array = plain;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, NULL));
    CHECK(cuArrayDestroy(plain));
}

int main(void)
{
    open_device(0);
    before = free_bytes();
    sizes();
    levels();
    tiles();
    puts("ok");
    return 0;
}
