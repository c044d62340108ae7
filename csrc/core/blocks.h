/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.h -- counts this process's small allocations in each 2 MiB block of device memory.
 *
 * Linear memory of at most 1 MiB comes out of blocks of 2 MiB, which the device keeps as long as
 * any allocation in them is left. So a block is charged with the first allocation in it, and
 * refunded with the last: each request is charged a block before it is known where it will lie.
 * Blocks are identified by their addresses; an entry is kept for the life of the process. No lock;
 * knows no CUDA.
 */
#ifndef PYVGPU_CORE_BLOCKS_H
#define PYVGPU_CORE_BLOCKS_H

#include <stdint.h>

#define BLOCKS_BYTES   (UINT64_C(2) << 20)
#define BLOCKS_LARGEST (UINT64_C(1) << 20) /* largest allocation that shares a block */

/* Add a small allocation, for which a block was charged: 1 if it is the first in its block, which
 * stays charged; 0 if the caller has to refund the charge; -ENOMEM. */
int blocks_enter(uint64_t address);

/* Remove it: 1 if it was the last in its block, and the caller has to refund the block. */
int blocks_leave(uint64_t address);

/* In a forked child: forget all. */
void blocks_after_fork(void);

#endif
