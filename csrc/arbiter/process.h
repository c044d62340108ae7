/* SPDX-License-Identifier: Apache-2.0 */
/* process.h -- a process that NVML names, as usage files name it. */
#ifndef PYVGPU_ARBITER_PROCESS_H
#define PYVGPU_ARBITER_PROCESS_H

#include <stdint.h>

struct process {
    uint32_t pid;           /* in its own PID namespace */
    uint64_t pid_namespace; /* the number of that; 0: we may not know */
};

/* Read it of the process *pid*, as our namespace counts. 0: there is none that /proc shows, or it
 * is a server of MPS, which works for others. */
int process_read(uint32_t pid, struct process *process);

#endif
