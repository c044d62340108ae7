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
    uint32_t life; /* which of the lives of its owner, whose record is used again */
};

/* Remember an allocation: 0 or -ENOMEM. 1 if its address had an entry, which is then *replaced*. */
int allocations_insert(const struct allocation *allocation, struct allocation *replaced);

/* Take the entry of *address* out; 0 if there is none. */
int allocations_take(uint64_t address, struct allocation *taken);

/* Take that very entry out again, if it is still there; 0 if it is not. */
int allocations_take_back(const struct allocation *allocation);

/* Take out everything that belongs to *owner*; returns the bytes it had. */
uint64_t allocations_take_owned(const void *owner);

/* In a forked child: forget everything. */
void allocations_after_fork(void);

#endif
