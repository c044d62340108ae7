/* SPDX-License-Identifier: Apache-2.0 */
/* managed.h -- managed memory on other devices than the one that it was allocated on.
 *
 * It is charged in full where it was allocated, wherever its pages lie, and from then on in full to
 * each device, too, that it is prefetched to or that is to be its place (cuMemAdvise), until it is
 * freed: when its pages leave a device again nobody says. Pages that move by being touched alone
 * are found by NVML.
 */
#ifndef PYVGPU_CUDA_MANAGED_H
#define PYVGPU_CUDA_MANAGED_H

#include "allocations.h"
#include "cuda/stream.h"
#include "hooks.h"
#include "region.h"

extern int managed_moved; /* whether this process ever was charged for such memory elsewhere */

/* There is managed memory, from now on. */
void managed_note(void);

/* The charges of an allocation on devices that it was moved to. */
struct managed_charges {
    unsigned count;
    struct allocation charges[REGION_DEVICES];
};

/* Take those of what begins at *address* out of the table, before the driver is asked to free it;
 * it was freed, is freed on *stream*, or was not. */
void managed_take(CUdeviceptr address, struct managed_charges *taken);
void managed_release(const struct managed_charges *taken);
void managed_restore(const struct managed_charges *taken);

#endif
