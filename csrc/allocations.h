/* SPDX-License-Identifier: Apache-2.0 */
/* allocations.h -- what this process has allocated: address -> bytes, device, owner.
 *
 * Process-local and forgotten with the process; the ledger alone is shared. The owner is an opaque
 * tag (a context), so that everything of one owner can be taken out at once. Sharded, each shard
 * with a spin lock that is never held over a call into the driver. Knows no CUDA.
 */
#ifndef PYVGPU_ALLOCATIONS_H
#define PYVGPU_ALLOCATIONS_H

#include <stdint.h>

struct allocation {
    uint64_t address; /* not 0 */
    uint64_t bytes;   /* as charged */
    const void *owner;
    uint32_t device;
    uint32_t reserved;
};

/* Remember an allocation; an entry of the same address is replaced. 0 or -ENOMEM. */
int allocations_insert(const struct allocation *allocation);

/* Take the entry of *address* out; 0 if there is none. */
int allocations_take(uint64_t address, struct allocation *taken);

/* Take out everything that belongs to *owner*; returns the bytes it had. */
uint64_t allocations_take_owned(const void *owner);

/* In a forked child: forget everything. */
void allocations_after_fork(void);

#endif
