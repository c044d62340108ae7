/* SPDX-License-Identifier: Apache-2.0 */
/* detach.h -- go on without whoever started us. */
#ifndef PYVGPU_ARBITER_DETACH_H
#define PYVGPU_ARBITER_DETACH_H

/* Become a daemon: no terminal, no parent, the root folder, no descriptors, signals as they are by
 * default. The calling process waits for the report and exits; if the daemon dies without one, it
 * exits with 1 and says nothing. -1 with errno set if there can be no daemon. */
int detach(void);

/* Let the waiting process exit: with 0 if *failure* is NULL, else it says *failure* and exits with
 * 1. */
void detach_report(int report, const char *failure);

#endif
