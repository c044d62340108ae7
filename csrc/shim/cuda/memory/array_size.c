/* SPDX-License-Identifier: Apache-2.0 */
/* array_size.c -- computes bounds of an array's size; see array_size.h.
 *
 * Blocks consist of units of 64 bytes by 8 rows: a power of two of them high, and in 3D arrays a
 * power of two deep, up to 32 and never more than the array needs. Each level of a mipmap has whole
 * blocks, and each layer begins with a whole block of the largest level.
 */
#include "shim/cuda/memory/array_size.h"
#include "core/compiler.h"

#define UNIT_WIDTH  64
#define UNIT_HEIGHT 8
#define UNITS       32
#define LEVELS      32

struct texels {
    CUarray_format format;
    uint8_t bytes;       /* of a texel, or of a square of them that is compressed as one */
    uint8_t side;        /* of that square */
    uint8_t planes;      /* of that size at most, one behind the other */
    uint8_t per_channel; /* whether *bytes* are those of one channel */
};

static const struct texels known[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 1, 1, 1, 1},
    {CU_AD_FORMAT_UNSIGNED_INT16, 2, 1, 1, 1},
    {CU_AD_FORMAT_UNSIGNED_INT32, 4, 1, 1, 1},
    {CU_AD_FORMAT_SIGNED_INT8, 1, 1, 1, 1},
    {CU_AD_FORMAT_SIGNED_INT16, 2, 1, 1, 1},
    {CU_AD_FORMAT_SIGNED_INT32, 4, 1, 1, 1},
    {CU_AD_FORMAT_HALF, 2, 1, 1, 1},
    {CU_AD_FORMAT_FLOAT, 4, 1, 1, 1},
    {CU_AD_FORMAT_UNORM_INT8X1, 1, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT8X2, 2, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT8X4, 4, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT16X1, 2, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT16X2, 4, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT16X4, 8, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT8X1, 1, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT8X2, 2, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT8X4, 4, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT16X1, 2, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT16X2, 4, 1, 1, 0},
    {CU_AD_FORMAT_SNORM_INT16X4, 8, 1, 1, 0},
    {CU_AD_FORMAT_UNORM_INT_101010_2, 4, 1, 1, 0},
    {CU_AD_FORMAT_BC1_UNORM, 8, 4, 1, 0},
    {CU_AD_FORMAT_BC1_UNORM_SRGB, 8, 4, 1, 0},
    {CU_AD_FORMAT_BC2_UNORM, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC2_UNORM_SRGB, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC3_UNORM, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC3_UNORM_SRGB, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC4_UNORM, 8, 4, 1, 0},
    {CU_AD_FORMAT_BC4_SNORM, 8, 4, 1, 0},
    {CU_AD_FORMAT_BC5_UNORM, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC5_SNORM, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC6H_UF16, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC6H_SF16, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC7_UNORM, 16, 4, 1, 0},
    {CU_AD_FORMAT_BC7_UNORM_SRGB, 16, 4, 1, 0},
    {CU_AD_FORMAT_NV12, 1, 1, 2, 0},
    {CU_AD_FORMAT_NV16, 1, 1, 2, 0},
    {CU_AD_FORMAT_P010, 2, 1, 2, 0},
    {CU_AD_FORMAT_P016, 2, 1, 2, 0},
    {CU_AD_FORMAT_P210, 2, 1, 2, 0},
    {CU_AD_FORMAT_P216, 2, 1, 2, 0},
    {CU_AD_FORMAT_YUY2, 2, 1, 1, 0},
    {CU_AD_FORMAT_Y210, 4, 1, 1, 0},
    {CU_AD_FORMAT_Y216, 4, 1, 1, 0},
    {CU_AD_FORMAT_AYUV, 4, 1, 1, 0},
    {CU_AD_FORMAT_Y410, 4, 1, 1, 0},
    {CU_AD_FORMAT_Y416, 8, 1, 1, 0},
    {CU_AD_FORMAT_Y444_PLANAR8, 1, 1, 3, 0},
    {CU_AD_FORMAT_Y444_PLANAR10, 2, 1, 3, 0},
    {CU_AD_FORMAT_YUV444_8bit_SemiPlanar, 1, 1, 3, 0},
    {CU_AD_FORMAT_YUV444_16bit_SemiPlanar, 2, 1, 3, 0},
    {CU_AD_FORMAT_UINT8_PACKED_422, 2, 1, 1, 0},
    {CU_AD_FORMAT_UINT8_PACKED_444, 4, 1, 1, 0},
    {CU_AD_FORMAT_UINT8_SEMIPLANAR_420, 1, 1, 2, 0},
    {CU_AD_FORMAT_UINT16_SEMIPLANAR_420, 2, 1, 2, 0},
    {CU_AD_FORMAT_UINT8_SEMIPLANAR_422, 1, 1, 2, 0},
    {CU_AD_FORMAT_UINT16_SEMIPLANAR_422, 2, 1, 2, 0},
    {CU_AD_FORMAT_UINT8_SEMIPLANAR_444, 1, 1, 3, 0},
    {CU_AD_FORMAT_UINT16_SEMIPLANAR_444, 2, 1, 3, 0},
    {CU_AD_FORMAT_UINT8_PLANAR_420, 1, 1, 3, 0},
    {CU_AD_FORMAT_UINT16_PLANAR_420, 2, 1, 3, 0},
    {CU_AD_FORMAT_UINT8_PLANAR_422, 1, 1, 3, 0},
    {CU_AD_FORMAT_UINT16_PLANAR_422, 2, 1, 3, 0},
    {CU_AD_FORMAT_UINT8_PLANAR_444, 1, 1, 3, 0},
    {CU_AD_FORMAT_UINT16_PLANAR_444, 2, 1, 3, 0},
};

/* For unknown formats. At most: four channels of 32 bits, the largest there are. At least: a byte
 * for a square of the largest side that any format has. */
#define DENSEST 12
static const struct texels unknown = {CU_AD_FORMAT_MAX, 16, 1, 1, 0};

static const struct texels *texels_of(CUarray_format format)
{
    for (unsigned i = 0; i < ARRAY_SIZE(known); i++)
        if (known[i].format == format)
            return &known[i];
    return &unknown;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* How many units are needed for *length*; 1 for a missing dimension. */
static uint64_t count(uint64_t length, uint64_t unit)
{
    return length ? (length - 1) / unit + 1 : 1;
}

/* The units along one side of a block: the least power of two that suffices, at most 32. */
static uint64_t block_side(uint64_t units)
{
    uint64_t side = 1;

    while (side < units && side < UNITS)
        side *= 2;
    return side;
}

static uint64_t whole(uint64_t units, uint64_t side)
{
    return multiply(count(units, side), side);
}

static uint64_t element_bytes(const struct texels *texels, unsigned int channels)
{
    return texels->bytes * (texels->per_channel ? (uint64_t) channels : 1);
}

/* The extents of a level and of its blocks, in units. */
struct level {
    uint64_t width, height, depth; /* units */
    uint64_t block_height, block_depth;
};

static struct level level_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, const struct texels *texels,
                             uint64_t depth, unsigned int number)
{
    uint64_t elements = count(descriptor->Width >> number, texels->side);
    uint64_t rows = count(descriptor->Height >> number, texels->side);
    struct level level = {
        .width =
            count(multiply(elements, element_bytes(texels, descriptor->NumChannels)), UNIT_WIDTH),
        .height = count(rows, UNIT_HEIGHT),
        .depth = count(depth >> number, 1),
    };

    level.block_height = block_side(level.height);
    level.block_depth = block_side(level.depth);
    return level;
}

static uint64_t level_bytes(const struct level *level)
{
    uint64_t units = multiply(level->width, whole(level->height, level->block_height));

    return multiply(multiply(units, whole(level->depth, level->block_depth)),
                    UNIT_WIDTH * UNIT_HEIGHT);
}

/* Whether the depth is a number of layers, each of which has all levels. */
static int is_layered(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
}

uint64_t array_size_at_most(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    const struct texels *texels = texels_of(descriptor->Format);
    uint64_t layers = is_layered(descriptor) ? count(descriptor->Depth, 1) : 1;
    uint64_t depth = is_layered(descriptor) ? 1 : descriptor->Depth;
    struct level first = level_of(descriptor, texels, depth, 0);
    uint64_t block = first.block_height * first.block_depth * UNIT_WIDTH * UNIT_HEIGHT;
    uint64_t bytes = level_bytes(&first);

    for (unsigned int number = 1; number < levels && number < LEVELS; number++) {
        struct level level = level_of(descriptor, texels, depth, number);

        bytes = add(bytes, level_bytes(&level));
    }
    return multiply(multiply(count(bytes, block), block), multiply(layers, texels->planes));
}

uint64_t array_size_at_least(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    const struct texels *texels = texels_of(descriptor->Format);
    uint64_t side = texels == &unknown ? DENSEST : texels->side;
    uint64_t bytes = texels == &unknown ? 1 : texels->bytes;
    uint64_t elements = multiply(count(descriptor->Width, side), count(descriptor->Height, side));

    return multiply(multiply(elements, count(descriptor->Depth, 1)), bytes);
}
