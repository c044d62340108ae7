/* SPDX-License-Identifier: Apache-2.0 */
/* suspension.h -- holds back calls that must not reach the driver while the process is suspended.
 *
 * The driver itself makes calls wait while it has locked a process (cuCheckpointProcessLock), with
 * exceptions: on some releases waits for a context or a stream return at once, and end the process
 * once it is checkpointed. So these wait here, and the supervisor locks the process only when none
 * of them is in the driver.
 */
#ifndef PYVGPU_SHIM_SUSPENSION_H
#define PYVGPU_SHIM_SUSPENSION_H

#include "core/compiler.h"
#include "core/region.h"
#include "shim/shim.h"

/* Whether the quota says that the process is suspended, or is being suspended. */
int suspension_is_on(void);

/* Wait until it is not. */
void suspension_wait(void);

/* The same in a process without a slot, which nothing kills: also until it can never begin. */
void suspension_wait_to_begin(void);

/* A call that uses a device begins. The node side learns from it since when a run has no work, and
 * whether a suspended one wants some: it writes a new generation of the quota, and reads after some
 * time whether a call has noted itself. */
void suspension_note_slowly(void);

extern uint64_t suspension_noted; /* generation */

static inline void suspension_note(void)
{
    if (likely(shim.open) && unlikely(region_generation(shim.region.quota) !=
                                      __atomic_load_n(&suspension_noted, __ATOMIC_RELAXED)))
        suspension_note_slowly();
}

/* Around a call that must not be in the driver when the process is locked. */
void suspension_enter(void);
void suspension_leave(void);

/* This process has *change* more pieces of memory that the driver cannot move, or fewer: multicast
 * objects, fabric memory, memory of another container. The node side reads their number before it
 * locks the process: the driver would hang, or the processes would lose the memory. */
void suspension_count_unmovable(int change);

/* Like suspension_enter, but do not wait. 0: the process is suspended, or is being suspended. */
int suspension_try_enter(void);

#endif
