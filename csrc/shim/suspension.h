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

/* Whether the quota says that the process is suspended, or is being suspended. */
int suspension_is_on(void);

/* Wait until it is not. */
void suspension_wait(void);

/* Around a call that must not be in the driver when the process is locked. */
void suspension_enter(void);
void suspension_leave(void);

#endif
