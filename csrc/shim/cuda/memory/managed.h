/* SPDX-License-Identifier: Apache-2.0 */
/* managed.h -- charges managed memory on devices other than the one that it was allocated on.
 *
 * It is charged in full to the device where it was allocated, wherever its pages lie; and also in
 * full to each device that it is prefetched to, or that becomes its preferred location
 * (cuMemAdvise), until it is freed: the driver does not report when its pages leave a device again.
 * Pages that move only by being touched are found by NVML.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_MANAGED_H
#define PYVGPU_SHIM_CUDA_MEMORY_MANAGED_H

#include "core/allocations.h"
#include "shim/cuda/work/stream.h"
#include "shim/hooks.h"
#include "core/region.h"

extern int managed_moved; /* whether this process was ever charged for such memory elsewhere */

/* This process has managed memory from now on. */
void managed_note(void);

/* The charges of an allocation on the devices that it was moved to. */
struct managed_charges {
    unsigned count;
    struct allocation charges[REGION_DEVICES];
};

/* Take the charges of the allocation at *address* out of the table, before the driver call that
 * frees it; then release them, or restore them if the call failed. */
void managed_take(CUdeviceptr address, struct managed_charges *taken);
void managed_release(const struct managed_charges *taken);
void managed_restore(const struct managed_charges *taken);

#endif
