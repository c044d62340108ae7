/* SPDX-License-Identifier: Apache-2.0 */
/* detach.h -- daemonize. */
#ifndef PYVGPU_ARBITER_DETACH_H
#define PYVGPU_ARBITER_DETACH_H

/* Become a daemon: no terminal, no parent, the root folder, no descriptors, default signal
 * handlers. The calling process waits for the report and exits; if the daemon dies without one, it
 * exits with 1 and prints nothing. -1 with errno set if that fails. */
int detach(void);

/* Let the waiting process exit: with 0 if *failure* is NULL, else it prints *failure* and exits
 * with 1. */
void detach_report(int report, const char *failure);

#endif
