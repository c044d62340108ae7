/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.h -- this process's small allocations in each 2 MiB block of device memory.
 *
 * Linear memory of at most 1 MiB comes out of blocks of 2 MiB, which the device keeps as long as
 * any allocation in them is left. So a block is charged with the first allocation in it, and
 * refunded with the last: each request is charged a block before it is known where it will lie.
 * Blocks are identified by their addresses; an entry is kept for the life of the process.
 *
 * What is at most 64 KiB is also recorded here, by two bits in maps of its block, rather than in
 * the table (allocations.h): 10,000 of them fit in the nearest cache. All that are recorded in a
 * block have one device and one owner. A block has a spin lock; knows no CUDA.
 */
#ifndef PYVGPU_CORE_BLOCKS_H
#define PYVGPU_CORE_BLOCKS_H

#include "core/allocations.h"

#include <stdint.h>

#define BLOCKS_BYTES   (UINT64_C(2) << 20)
#define BLOCKS_LARGEST (UINT64_C(1) << 20) /* largest allocation that shares a block */

/* Count a small allocation, for which a block was charged: 1 if it is the first in its block, which
 * stays charged; 0 if the caller has to refund the charge; -ENOMEM. */
int blocks_enter(uint64_t address);

/* Remove it: 1 if it was the last in its block, and the caller has to refund the block. */
int blocks_leave(uint64_t address);

enum blocks_recorded {
    BLOCKS_NOT_RECORDED, /* it belongs into the table */
    BLOCKS_FIRST,        /* the first in its block, which stays charged */
    BLOCKS_SHARED,       /* the caller has to refund the charge */
};

/* As in struct allocation. */
struct blocks_owner {
    const void *owner;
    uint32_t life;
    unsigned device;
};

/* Enter and record linear memory without a link. Sets *mixed* if the block may have others that are
 * in the table, such as one with the same address whose free was not seen. */
enum blocks_recorded blocks_record(uint64_t address, uint64_t bytes,
                                   const struct blocks_owner *owner, int *mixed);

/* The following are like those of the table, for what is recorded here. What is taken out is still
 * counted, until it leaves or is put back. */
int blocks_take(uint64_t address, struct allocation *taken);
int blocks_find(uint64_t address, struct allocation *found);
int blocks_take_back(const struct allocation *allocation);
void blocks_take_owned(const void *owner, void (*gone)(const struct allocation *, void *),
                       void *argument);
void blocks_put_back(const struct allocation *taken);

/* Pass a recorded allocation to *move* under its block's lock; it is taken out if *move* returns 1.
 * Returns 0 if it is not recorded or stays. */
int blocks_move(uint64_t address, int (*move)(struct allocation *, void *), void *argument);

/* In a forked child: forget all. */
void blocks_after_fork(void);

#endif
