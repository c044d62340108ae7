/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.h -- device memory that an allocator reserves, of which part is in use.
 *
 * It grows by chunks, whose size the machine's law says, and is charged as a whole; its use is not
 * charged again. Its owner locks it; only the machine's accounting is called from here.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_RESERVE_H
#define PYVGPU_SIMULATOR_CUDA_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct reserve {
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    uint64_t most; /* limit of reserved; 0: none */
    uint32_t device;
    bool is_free_of_charge; /* host memory: counted, not charged */
    int share;              /* by which it is exported, counted from 1; 0: none */
};

/* Size of a block in a reserve: from 1 MiB on in units of 2 MiB, below that of 512 bytes. */
uint64_t reserve_round(uint64_t bytes);

/* Use bytes; grow if necessary: by whole chunks, or else by just the missing bytes. */
bool reserve_use(struct reserve *reserve, uint64_t bytes);

/* Grow to have so many more bytes free, without using them. */
bool reserve_grow(struct reserve *reserve, uint64_t bytes);

/* Reserve a new part for that many bytes: its size, or 0; and release such a part. */
uint64_t reserve_take(struct reserve *reserve, uint64_t bytes);
void reserve_give(struct reserve *reserve, uint64_t bytes);

void reserve_unuse(struct reserve *reserve, uint64_t bytes);

/* Shrink to this many bytes, but not below the bytes in use, and not while another process has
 * some of it open.
 */
void reserve_shrink(struct reserve *reserve, uint64_t keep);

/* Release the reserve; memory that other processes have open stays with them. */
void reserve_end(struct reserve *reserve);

#endif
