/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.h -- memory that an allocator has of the device, more than is in use of it.
 *
 * It grows by chunks, whose size the machine's law says, and is charged as a whole; what is used of
 * it is charged no more. Its owner locks it; nothing is called from here but the machine's
 * counting.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_RESERVE_H
#define PYVGPU_SIMULATOR_CUDA_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct reserve {
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    uint64_t most; /* that may be reserved; 0: no limit */
    uint32_t device;
    bool is_free_of_charge; /* host memory: counted, charged to nobody */
    int share;              /* that others may have it by, counted from 1; 0: none */
};

/* What a block takes of a reserve: 1 MiB and more by 2 MiB, less by 512 bytes. */
uint64_t reserve_round(uint64_t bytes);

/* Use bytes, having more if need be: whole chunks, else just what is missing. */
bool reserve_use(struct reserve *reserve, uint64_t bytes);

/* Have enough for so many more bytes, and use none of them. */
bool reserve_grow(struct reserve *reserve, uint64_t bytes);

/* Have a new part for that many bytes: how large it is, or 0; and have such a part no more. */
uint64_t reserve_take(struct reserve *reserve, uint64_t bytes);
void reserve_give(struct reserve *reserve, uint64_t bytes);

void reserve_unuse(struct reserve *reserve, uint64_t bytes);

/* Keep this much, but never less than is in use, and all as long as another process has some of it
 * open.
 */
void reserve_shrink(struct reserve *reserve, uint64_t keep);

/* It is not wanted any more; what others have of it stays with them. */
void reserve_end(struct reserve *reserve);

#endif
