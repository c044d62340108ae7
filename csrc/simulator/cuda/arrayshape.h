/* SPDX-License-Identifier: Apache-2.0 */
/* arrayshape.h -- what arrays take: formats, rows, levels, layers, tiles. Knows no memory.
 *
 * What an array takes has rows padded to 64 bytes and, in two dimensions, rows by eight, as on
 * hardware that stores arrays in small rectangles. Its elements are kept row behind row. Levels of
 * a mipmapped array lie one behind the other.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_ARRAYSHAPE_H
#define PYVGPU_SIMULATOR_CUDA_ARRAYSHAPE_H

#include "cuda/api.h"

struct array_shape {
    uint64_t row_bytes;
    uint64_t slice_bytes; /* a layer, a face, a depth */
    uint64_t bytes;       /* of elements */
    uint64_t padded;      /* what it takes */
};

/* False: there is no such array. */
bool array_shape(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct array_shape *shape);

/* The description of a level; the last level has one element. */
CUDA_ARRAY3D_DESCRIPTOR array_level(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int level);
unsigned int array_most_levels(const CUDA_ARRAY3D_DESCRIPTOR *whole);

/* Where the levels lie that are too small for a tile, and what a tile holds. */
void array_tiles(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int levels,
                 CUDA_ARRAY_SPARSE_PROPERTIES *properties);

#endif
