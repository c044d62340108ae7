/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h -- claims this process's slot in a region, and reaps the slots of dead processes.
 *
 * A slot is taken while the OFD write lock on its byte is held. The lock is taken on a descriptor
 * opened for that purpose only, which is mapped and then closed: the mapping keeps the lock; no
 * close() elsewhere can drop it, but exec and death do. So no pid is ever compared, and kill -9 at
 * any instruction leaves nothing to repair.
 *
 * The driver frees a process's memory when the last copy of its descriptors is closed, and forked
 * children have copies until they end or exec. From the driver's initialisation on they inherit the
 * mapping, too: so the slot lasts as long as the memory, however the parent ended.
 */
#ifndef PYVGPU_CORE_SLOTS_H
#define PYVGPU_CORE_SLOTS_H

#include "core/region.h"

/* Whether no process may begin any more: the supervisor of the quota has ended. */
int slots_are_closed(const struct region *region, uint32_t flags);

/* Take a free slot for this process; its lock lasts until the process ends or execs. Forked
 * children do not inherit it yet. */
enum region_failure slots_claim(struct region *region, uint32_t flags,
                                struct region_reason *reason);

/* The driver is about to be initialised: children forked from now on keep the slot's lock until
 * they end or exec. */
void slots_keep_with_children(void);

/* Release the slot, and clear what it still holds. */
void slots_release(struct region *region);

/* Clear the slots of dead processes; called wherever sums are read: at most every 50 ms over all
 * processes of the region. */
void slots_reap(struct region *region);

/* The same before a charge is refused, at most every 50 ms in this process alone: no charge is
 * refused because of another process's earlier scan. Returns 1 if it scanned. */
int slots_reap_before_refusal(struct region *region);

/* Around each fork of the process, so that a claim notices a concurrent fork. */
void slots_before_fork(void);
void slots_after_fork_in_parent(void);

/* In a forked child: forget the slot, which belongs to the parent. */
void slots_after_fork(struct region *region);

#endif
