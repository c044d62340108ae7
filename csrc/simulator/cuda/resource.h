/* SPDX-License-Identifier: Apache-2.0 */
/* resource.h -- ranges of a device's SMs, for green contexts. */
#ifndef PYVGPU_SIMULATOR_CUDA_RESOURCE_H
#define PYVGPU_SIMULATOR_CUDA_RESOURCE_H

#include "process.h"

/* SMs first to first + count - 1 of a device. */
struct processors {
    CUdevice ordinal;
    uint32_t first;
    uint32_t count;
    uint32_t alignment; /* how many SMs form a unit */
};

/* All of a device's SMs. */
struct processors resource_whole(CUdevice ordinal);

/* Describe these SMs as a resource that can be split. INVALID_RESOURCE_TYPE for any type but SMs.
 */
CUresult resource_describe(const struct processors *processors, CUdevResourceType type,
                           CUdevResource *resource);

/* The SMs of a descriptor; false if it is none. */
bool resource_of(CUdevResourceDesc descriptor, struct processors *processors);

#endif
