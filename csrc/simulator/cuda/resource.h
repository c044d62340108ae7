/* SPDX-License-Identifier: Apache-2.0 */
/* resource.h -- the processors of a device, by ranges, as green contexts get them. */
#ifndef PYVGPU_SIMULATOR_CUDA_RESOURCE_H
#define PYVGPU_SIMULATOR_CUDA_RESOURCE_H

#include "process.h"

/* Processors first to first + count - 1 of a device. */
struct processors {
    CUdevice ordinal;
    uint32_t first;
    uint32_t count;
    uint32_t alignment; /* how many of them stand together */
};

/* All of a device's processors. */
struct processors resource_whole(CUdevice ordinal);

/* Say which processors these are, as something that can be split. INVALID_RESOURCE_TYPE for
 * anything but processors.
 */
CUresult resource_describe(const struct processors *processors, CUdevResourceType type,
                           CUdevResource *resource);

/* The processors that a descriptor stands for; false if it is none. */
bool resource_of(CUdevResourceDesc descriptor, struct processors *processors);

#endif
