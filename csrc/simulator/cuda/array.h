/* SPDX-License-Identifier: Apache-2.0 */
/* array.h -- CUDA arrays: device memory with a shape; rows lie one behind the other. */
#ifndef PYVGPU_SIMULATOR_CUDA_ARRAY_H
#define PYVGPU_SIMULATOR_CUDA_ARRAY_H

#include "process.h"

struct array {
    uint32_t magic;
    uint32_t device;
    CUdeviceptr address;
    uint64_t row_bytes;
    uint64_t slice_bytes;
    uint64_t bytes;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUmipmappedArray whole; /* the mipmapped array it is a level of */
};

/* NULL if the handle is no array. */
struct array *array_find(CUarray handle);

#endif
