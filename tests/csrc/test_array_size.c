/* SPDX-License-Identifier: Apache-2.0 */
/* test_array_size.c -- upper and lower bounds of array sizes, against literal values. */
#include "check.h"
#include "shim/cuda/memory/array_size.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static const struct row {
    const char *words;
    CUDA_ARRAY3D_DESCRIPTOR descriptor; /* width, height, depth, format, channels, flags */
    unsigned int levels;
    uint64_t most;
    uint64_t least;
} rows[] = {
    {"one byte", {1, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 512, 1},
    {"a line", {1024, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 1, 32 * KIB, 4 * KIB},
    {"whole units", {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 1, 4 * MIB, 4 * MIB},
    {"channels", {1024, 1024, 0, CU_AD_FORMAT_HALF, 4, 0}, 1, 8 * MIB, 2 * MIB},
    {"a narrow column", {1, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 64 * KIB, KIB},
    {"one row too many", {64, 9, 0, CU_AD_FORMAT_SIGNED_INT8, 1, 0}, 1, KIB, 576},
    {"rows of five units", {64, 33, 0, CU_AD_FORMAT_SIGNED_INT8, 1, 0}, 1, 4 * KIB, 2112},
    {"rows of 33 units", {64, 257, 0, CU_AD_FORMAT_SIGNED_INT8, 1, 0}, 1, 32 * KIB, 16448},
    {"a cuboid", {64, 8, 5, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 4 * KIB, 2560},
    {"layers", {64, 8, 5, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED}, 1, 2560, 2560},
    {"lines in layers",
     {64, 0, 5, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED},
     1,
     2560,
     320},
    {"a cube's faces",
     {64, 64, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_CUBEMAP},
     1,
     24 * KIB,
     24 * KIB},
    {"one level", {64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 4 * KIB, 4 * KIB},
    {"seven levels, in whole blocks",
     {64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0},
     7,
     12 * KIB,
     4 * KIB},
    {"levels of each layer",
     {64, 64, 2, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED},
     7,
     24 * KIB,
     8 * KIB},
    {"4 bits a texel", {1024, 1024, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0}, 1, MIB / 2, MIB / 2},
    {"8 bits a texel", {1024, 1024, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0}, 1, MIB, MIB},
    {"fixed channels", {1024, 1024, 0, CU_AD_FORMAT_UNORM_INT8X4, 4, 0}, 1, 4 * MIB, 4 * MIB},
    {"two planes", {1024, 1024, 0, CU_AD_FORMAT_NV12, 3, 0}, 1, 2 * MIB, MIB},
    {"three planes", {1024, 1024, 0, CU_AD_FORMAT_UINT16_PLANAR_444, 3, 0}, 1, 6 * MIB, 2 * MIB},
    {"an unknown format", {1024, 1024, 0, (CUarray_format) 0x7e, 1, 0}, 1, 16 * MIB, 7396},
    {"nothing", {0, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 1, 512, 4},
    {"no channels", {64, 64, 0, CU_AD_FORMAT_FLOAT, 0, 0}, 1, 4 * KIB, 16 * KIB},
    {"more than can be counted",
     {SIZE_MAX, SIZE_MAX, SIZE_MAX, CU_AD_FORMAT_FLOAT, 4, 0},
     UINT32_MAX,
     UINT64_MAX,
     UINT64_MAX},
};

int main(void)
{
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_EQUAL(rows[i].words, array_size_at_most(&rows[i].descriptor, rows[i].levels),
                    rows[i].most);
        CHECK_EQUAL(rows[i].words, array_size_at_least(&rows[i].descriptor), rows[i].least);
    }
    return check_end();
}
