/* SPDX-License-Identifier: Apache-2.0 */
/* arrayshape.h -- sizes of arrays: formats, rows, levels, layers, tiles. Knows no memory.
 *
 * The charged size pads rows to 64 bytes and, in two dimensions, their number to a multiple of
 * eight, as on hardware that stores arrays in small rectangles. The elements themselves are stored
 * row after row, the levels of a mipmapped array one after the other.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_ARRAYSHAPE_H
#define PYVGPU_SIMULATOR_CUDA_ARRAYSHAPE_H

#include "cuda/api.h"

struct array_shape {
    uint64_t row_bytes;
    uint64_t slice_bytes; /* a layer, a face, a depth */
    uint64_t bytes;       /* of elements */
    uint64_t padded;      /* size charged */
};

/* False: there is no such array. */
bool array_shape(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct array_shape *shape);

/* The description of a level; the last level has one element. */
CUDA_ARRAY3D_DESCRIPTOR array_shape_level(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int level);
unsigned int array_shape_most_levels(const CUDA_ARRAY3D_DESCRIPTOR *whole);

/* Sparse properties: the mip tail (levels smaller than a tile) and the tile's extent. */
void array_shape_tiles(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned int levels,
                       CUDA_ARRAY_SPARSE_PROPERTIES *properties);

#endif
