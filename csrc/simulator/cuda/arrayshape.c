/* SPDX-License-Identifier: Apache-2.0 */
/* arrayshape.c -- sizes and layout of arrays. */
#include "cuda/arrayshape.h"

#define ROW_UNIT   UINT64_C(64)
#define ROWS_UNIT  UINT64_C(8)
#define LEVEL_UNIT UINT64_C(512)
#define TILE_BYTES UINT64_C(65536)

enum { FACES = 6, BLOCK = 4 /* compressed formats hold squares of 4 by 4 */ };

/* Bytes of one element of a plain format, or of one block of a compressed one. */
static const struct {
    int first, last;
    unsigned int bytes;
    unsigned int channels; /* 0: the descriptor says how many, and bytes are of one */
    unsigned int block;
} formats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 1},
    {CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT16, 2, 0, 1},
    {CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_UNSIGNED_INT32, 4, 0, 1},
    {CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8, 1, 0, 1},
    {CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16, 2, 0, 1},
    {CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, 4, 0, 1},
    {CU_AD_FORMAT_HALF, CU_AD_FORMAT_HALF, 2, 0, 1},
    {CU_AD_FORMAT_FLOAT, CU_AD_FORMAT_FLOAT, 4, 0, 1},
    {CU_AD_FORMAT_UNORM_INT8X1, CU_AD_FORMAT_UNORM_INT8X1, 1, 1, 1},
    {CU_AD_FORMAT_UNORM_INT8X2, CU_AD_FORMAT_UNORM_INT8X2, 2, 2, 1},
    {CU_AD_FORMAT_UNORM_INT8X4, CU_AD_FORMAT_UNORM_INT8X4, 4, 4, 1},
    {CU_AD_FORMAT_UNORM_INT16X1, CU_AD_FORMAT_UNORM_INT16X1, 2, 1, 1},
    {CU_AD_FORMAT_UNORM_INT16X2, CU_AD_FORMAT_UNORM_INT16X2, 4, 2, 1},
    {CU_AD_FORMAT_UNORM_INT16X4, CU_AD_FORMAT_UNORM_INT16X4, 8, 4, 1},
    {CU_AD_FORMAT_SNORM_INT8X1, CU_AD_FORMAT_SNORM_INT8X1, 1, 1, 1},
    {CU_AD_FORMAT_SNORM_INT8X2, CU_AD_FORMAT_SNORM_INT8X2, 2, 2, 1},
    {CU_AD_FORMAT_SNORM_INT8X4, CU_AD_FORMAT_SNORM_INT8X4, 4, 4, 1},
    {CU_AD_FORMAT_SNORM_INT16X1, CU_AD_FORMAT_SNORM_INT16X1, 2, 1, 1},
    {CU_AD_FORMAT_SNORM_INT16X2, CU_AD_FORMAT_SNORM_INT16X2, 4, 2, 1},
    {CU_AD_FORMAT_SNORM_INT16X4, CU_AD_FORMAT_SNORM_INT16X4, 8, 4, 1},
    {CU_AD_FORMAT_BC1_UNORM, CU_AD_FORMAT_BC1_UNORM_SRGB, 8, 4, BLOCK},
    {CU_AD_FORMAT_BC2_UNORM, CU_AD_FORMAT_BC3_UNORM_SRGB, 16, 4, BLOCK},
    {CU_AD_FORMAT_BC4_UNORM, CU_AD_FORMAT_BC4_SNORM, 8, 1, BLOCK},
    {CU_AD_FORMAT_BC5_UNORM, CU_AD_FORMAT_BC5_SNORM, 16, 2, BLOCK},
    {CU_AD_FORMAT_BC6H_UF16, CU_AD_FORMAT_BC6H_SF16, 16, 3, BLOCK},
    {CU_AD_FORMAT_BC7_UNORM, CU_AD_FORMAT_BC7_UNORM_SRGB, 16, 4, BLOCK},
    {CU_AD_FORMAT_UNORM_INT_101010_2, CU_AD_FORMAT_UNORM_INT_101010_2, 4, 4, 1},
};

struct element {
    uint64_t bytes; /* 0: there is no such format */
    uint64_t block;
};

static struct element element_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    unsigned int channels = descriptor->NumChannels;

    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        if ((int) descriptor->Format < formats[i].first ||
            (int) descriptor->Format > formats[i].last)
            continue;
        if (formats[i].channels)
            return (struct element) {channels == formats[i].channels ? formats[i].bytes : 0,
                                     formats[i].block};
        if (channels == 1 || channels == 2 || channels == 4)
            return (struct element) {(uint64_t) formats[i].bytes * channels, 1};
    }
    return (struct element) {0, 1};
}

static uint64_t up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static uint64_t at_least_one(uint64_t extent)
{
    return extent ? extent : 1;
}

bool array_shape(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct array_shape *shape)
{
    struct element element = element_of(descriptor);
    uint64_t rows, slices, padded_rows;

    if (!element.bytes || !descriptor->Width || descriptor->Width > UINT32_MAX ||
        descriptor->Height > UINT32_MAX || descriptor->Depth > UINT32_MAX)
        return false;
    if (descriptor->Flags & CUDA_ARRAY3D_CUBEMAP &&
        (descriptor->Width != descriptor->Height || !descriptor->Depth ||
         descriptor->Depth % FACES))
        return false;
    rows = up(at_least_one(descriptor->Height), element.block) / element.block;
    slices = at_least_one(descriptor->Depth);
    shape->row_bytes = up(descriptor->Width, element.block) / element.block * element.bytes;
    padded_rows = descriptor->Height ? up(rows, ROWS_UNIT) : rows;
    if (__builtin_mul_overflow(up(shape->row_bytes, ROW_UNIT), padded_rows, &shape->padded) ||
        __builtin_mul_overflow(shape->padded, slices, &shape->padded))
        return false;
    shape->slice_bytes = shape->row_bytes * rows; /* these are smaller */
    shape->bytes = shape->slice_bytes * slices;
    return true;
}

static uint64_t halve(uint64_t extent, unsigned int level)
{
    return extent ? at_least_one(extent >> level) : 0;
}

static bool is_layered(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

CUDA_ARRAY3D_DESCRIPTOR array_shape_level(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int level)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = *whole;

    descriptor.Width = halve(whole->Width, level);
    descriptor.Height = halve(whole->Height, level);
    if (!is_layered(whole))
        descriptor.Depth = halve(whole->Depth, level);
    return descriptor;
}

unsigned int array_shape_most_levels(const CUDA_ARRAY3D_DESCRIPTOR *whole)
{
    uint64_t extent = whole->Width > whole->Height ? whole->Width : whole->Height;
    unsigned int levels = 1;

    if (!is_layered(whole) && extent < whole->Depth)
        extent = whole->Depth;
    while (extent >>= 1)
        levels++;
    return levels;
}

/* The largest power-of-two rectangle of TILE_BYTES, as square or as cubic as can be. */
static void tile_of(const CUDA_ARRAY3D_DESCRIPTOR *whole, CUDA_ARRAY_SPARSE_PROPERTIES *properties)
{
    struct element element = element_of(whole);
    bool is_flat = is_layered(whole) || !whole->Depth;
    uint64_t left = TILE_BYTES / at_least_one(element.bytes);
    unsigned int extents[3] = {1, 1, 1};
    unsigned int dimensions = is_flat ? 2 : 3;

    for (unsigned int i = 0; left > 1; i++, left /= 2)
        extents[i % dimensions] *= 2;
    properties->tileExtent.width = extents[0] * (unsigned int) element.block;
    properties->tileExtent.height = extents[1] * (unsigned int) element.block;
    properties->tileExtent.depth = extents[2];
}

void array_shape_tiles(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int levels,
                       CUDA_ARRAY_SPARSE_PROPERTIES *properties)
{
    *properties = (CUDA_ARRAY_SPARSE_PROPERTIES) {0};
    tile_of(whole, properties);
    for (unsigned int level = 0; level < levels; level++) {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = array_shape_level(whole, level);
        struct array_shape shape;

        if (descriptor.Width >= properties->tileExtent.width &&
            descriptor.Height >= properties->tileExtent.height &&
            (is_layered(whole) || at_least_one(descriptor.Depth) >= properties->tileExtent.depth)) {
            properties->miptailFirstLevel = level + 1;
        } else if (array_shape(&descriptor, &shape)) {
            properties->miptailSize += up(shape.padded, LEVEL_UNIT);
        }
    }
    properties->miptailSize = up(properties->miptailSize, TILE_BYTES);
    if (is_layered(whole))
        properties->flags = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
}
