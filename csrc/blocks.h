/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.h -- how many small allocations of this process lie in which block of the device.
 *
 * Linear memory of at most 1 MiB comes out of blocks of 2 MiB, which the device keeps as long as
 * anything in them is left. So a block is charged with the first allocation in it, and given back
 * with the last: each request is charged a block before it is known where it will lie. Blocks are
 * known by their addresses; what was seen of one is kept for the life of the process. No lock;
 * knows no CUDA.
 */
#ifndef PYVGPU_BLOCKS_H
#define PYVGPU_BLOCKS_H

#include <stdint.h>

#define BLOCKS_BYTES   (UINT64_C(2) << 20)
#define BLOCKS_LARGEST (UINT64_C(1) << 20) /* that lies in one with others */

/* A small allocation, for which a block is charged, has this address: 1 if it is the first in its
 * block, which stays charged; 0 if the charge is to be refunded; -ENOMEM. */
int blocks_enter(uint64_t address);

/* It is gone: 1 if it was the last in its block, whose charge is to be refunded. */
int blocks_leave(uint64_t address);

/* In a forked child: there are none. */
void blocks_after_fork(void);

#endif
