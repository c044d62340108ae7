/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h -- this process's place in a region, and the places of the dead.
 *
 * A slot belongs to whoever holds the OFD write lock on its byte. The lock is taken on a
 * descriptor opened for it alone, which is mapped and then closed: the mapping keeps the lock, no
 * close() elsewhere can drop it, exec and death do, and MADV_DONTFORK keeps children out of it.
 * So no pid is ever compared, and kill -9 at any instruction leaves nothing to repair.
 */
#ifndef PYVGPU_SLOTS_H
#define PYVGPU_SLOTS_H

#include "region.h"

/* Take a free slot for this process; its lock lasts until the process ends or execs. */
enum region_failure region_claim(struct region *region, uint32_t flags,
                                 struct region_reason *reason);

/* Give the slot back; what it still holds is cleared. */
void region_release(struct region *region);

/* Clear the slots whose owner is dead, wherever somebody looks at sums: at most every 50 ms over
 * all processes of the region. */
void region_reap(struct region *region);

/* The same before a charge is refused: at most every 50 ms of this process's own, so that what
 * somebody else saw earlier refuses nobody. Returns 1 if it looked. */
int region_reap_before_refusal(struct region *region);

/* Around each fork of the process, so that a claim notices one that falls into it. */
void region_before_fork(void);
void region_after_fork_in_parent(void);

/* In a forked child: forget the slot. Its lock stays the parent's alone. */
void region_after_fork(struct region *region);

#endif
