/* SPDX-License-Identifier: Apache-2.0 */
/* process.h -- translates a pid that NVML reports to the form in usage files. */
#ifndef PYVGPU_ARBITER_PROCESS_H
#define PYVGPU_ARBITER_PROCESS_H

#include <stdint.h>

struct process {
    uint32_t pid;           /* in its own PID namespace */
    uint64_t pid_namespace; /* inode number of that namespace; 0: unreadable */
};

/* Look up the process *pid* of our own PID namespace. 0: /proc does not show it, or it is an MPS
 * server, which works on behalf of others. */
int process_read(uint32_t pid, struct process *process);

#endif
