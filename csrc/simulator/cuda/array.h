/* SPDX-License-Identifier: Apache-2.0 */
/* array.h -- CUDA arrays: device memory with a shape. */
#ifndef PYVGPU_SIMULATOR_CUDA_ARRAY_H
#define PYVGPU_SIMULATOR_CUDA_ARRAY_H

#include "cuda/arrayshape.h"
#include "memory.h"

struct arraymap;

/* The memory of an array, or of all levels of one. */
struct array_memory {
    CUdeviceptr address;
    uint64_t bytes;
    enum memory_kind kind;   /* MEMORY_UNBACKED: no memory but what is mapped to it */
    struct arraymap *mapped; /* cuda/arraymap.c */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    unsigned int levels;
};

struct array {
    uint32_t magic;
    uint32_t device;
    CUdeviceptr address;
    uint64_t row_bytes;
    uint64_t slice_bytes;
    uint64_t bytes;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    struct array_memory *memory;
    bool is_level; /* of a mipmapped array, whose memory it is */
};

/* NULL if the handle is no array. */
struct array *array_find(CUarray handle);

/* The memory behind a handle; NULL if it is none, or a level. */
struct array_memory *array_memory_of(CUarray handle);
struct array_memory *array_mipmap_memory(CUmipmappedArray handle);

/* --- cuda/arraymap.c ---------------------------------------------------------------------------
 */

/* Release the memory that is mapped to it. */
void arraymap_free(struct array_memory *memory);

#endif
