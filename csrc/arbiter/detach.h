/* SPDX-License-Identifier: Apache-2.0 */
/* detach.h -- go on without whoever started us. */
#ifndef PYVGPU_ARBITER_DETACH_H
#define PYVGPU_ARBITER_DETACH_H

/* Become a process of nobody's: no terminal, no parent, the root folder, no descriptors, signals
 * as they are by default. Who called us waits for the report; -1 with errno set if none can. */
int detach(void);

/* Let the one who waits go: all is well if *failure* is NULL, else that is said and the exit code
 * is 1. */
void detach_report(int report, const char *failure);

#endif
