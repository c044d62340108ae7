/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.h -- who in this container holds how much device memory; charge, settle, refund.
 *
 * The truth is one word a slot, by device, and nothing else: no total is stored, for a process can
 * die between two words. A charge adds itself to its own word, marked undecided, and then sums all
 * words up to the high-water mark: over the limit, it takes itself back. Of any set of admitted
 * charges the one that was added last has seen all others in its sum, so the sum of what is
 * admitted is never over the limit, at no instant and whoever dies where.
 *
 * It knows no CUDA: devices are indexes into the quota, results are 0 or -errno.
 */
#ifndef PYVGPU_LEDGER_H
#define PYVGPU_LEDGER_H

#include "region.h"

struct ledger {
    struct region *region;
    uint64_t limit[REGION_DEVICES]; /* bytes, by device; written atomically when limits change */
    uint64_t generation;            /* of these limits, written after them */
};

/* Reserve *bytes* for this process on *device*: 0, or -ENOMEM if they do not fit.
 *
 * A charge that is admitted by limits which were replaced meanwhile is decided again by the new
 * ones. So bytes above a lowered limit are in the sum before the writer of that limit reads it, or
 * they are never admitted.
 *
 * Two undecided charges may refuse each other: then the lower slot goes on and the other tries
 * again, for at most a millisecond. Within a process one thread at a time stands for its slot. */
int ledger_charge(struct ledger *ledger, unsigned device, uint64_t bytes);

/* Give back what was charged. */
void ledger_refund(struct ledger *ledger, unsigned device, uint64_t bytes);

/* Bytes held on *device* by all processes; dead ones are cleared first if nobody did lately. */
uint64_t ledger_used(struct ledger *ledger, unsigned device);

#endif
