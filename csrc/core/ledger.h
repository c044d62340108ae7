/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.h -- charges and refunds device memory against a container's limit.
 *
 * The only state is one word per slot and device: no total is stored, for a process can die between
 * two writes. A charge adds itself to its process's word, marked undecided, and then sums all words
 * up to the high-water mark: if that is over the limit, it withdraws itself. Of any set of admitted
 * charges the one that was added last has seen all others in its sum, so the sum of admitted
 * charges never exceeds the limit, at any instant and whichever process dies where.
 *
 * All processes write to the same cache lines of words. Small allocations come from blocks of 2 MiB
 * (core/blocks.h), so many of them charge and refund one block, over and over. A process therefore
 * keeps its last freed block reserved in its word: it allocates and frees it again by a state in a
 * cache line of its own, without a sum. Any process that would refuse a charge first takes the
 * reserved blocks of all processes; a reserved block is never reported as held.
 *
 * It knows no CUDA: devices are indexes into the quota, results are 0 or -errno.
 */
#ifndef PYVGPU_CORE_LEDGER_H
#define PYVGPU_CORE_LEDGER_H

#include "core/region.h"

struct ledger {
    struct region *region;
    uint64_t limit[REGION_DEVICES]; /* bytes, by device; written atomically when limits change */
    uint64_t generation;            /* of these limits, written after them */
    /* The generation in which our reserved block was within the limit. */
    uint64_t block_generation[REGION_DEVICES];
};

/* Reserve *bytes* for this process on *device*: 0, or -ENOMEM if they do not fit.
 *
 * If the limits were replaced meanwhile, the charge is decided again by the new ones. So bytes
 * above a lowered limit are in the sum before the writer of that limit reads it, or they are never
 * admitted.
 *
 * Two undecided charges may refuse each other: then the lower slot proceeds and the other retries,
 * for at most a millisecond. Within a process one thread at a time acts for its slot. */
int ledger_charge(struct ledger *ledger, unsigned device, uint64_t bytes);

/* Refund bytes that were charged. A block may stay reserved for this process. */
void ledger_refund(struct ledger *ledger, unsigned device, uint64_t bytes);

/* Bytes held on *device* by all processes, without reserved blocks; reaps dead ones first unless
 * that was done recently. */
uint64_t ledger_used(struct ledger *ledger, unsigned device);

#endif
