/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h -- this process's place in a region, and the places of the dead.
 *
 * A slot is taken while the OFD write lock on its byte is held. The lock is taken on a descriptor
 * opened for it alone, which is mapped and then closed: the mapping keeps the lock, no close()
 * elsewhere can drop it, exec and death do. So no pid is ever compared, and kill -9 at any
 * instruction leaves nothing to repair.
 *
 * The driver frees a process's memory when the last copy of its descriptors is closed, and children
 * that are forked have copies until they end or exec. They inherit the mapping, too, from when the
 * driver is initialised: so the slot lasts as long as the memory, however the parent ended.
 */
#ifndef PYVGPU_SLOTS_H
#define PYVGPU_SLOTS_H

#include "region.h"

/* Take a free slot for this process; its lock lasts until the process ends or execs. Children that
 * are forked do not have it yet. */
enum region_failure region_claim(struct region *region, uint32_t flags,
                                 struct region_reason *reason);

/* The driver is about to be initialised: children that are forked from now on keep the slot's lock
 * until they end or exec. */
void region_keep_with_children(void);

/* Give the slot back; what it still holds is cleared. */
void region_release(struct region *region);

/* Clear the slots that nothing keeps any more, wherever somebody looks at sums: at most every 50 ms
 * over all processes of the region. */
void region_reap(struct region *region);

/* The same before a charge is refused: at most every 50 ms of this process's own, so that what
 * somebody else saw earlier refuses nobody. Returns 1 if it looked. */
int region_reap_before_refusal(struct region *region);

/* Around each fork of the process, so that a claim notices one that falls into it. */
void region_before_fork(void);
void region_after_fork_in_parent(void);

/* In a forked child: forget the slot, which is the parent's. */
void region_after_fork(struct region *region);

#endif
