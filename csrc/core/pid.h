/* SPDX-License-Identifier: Apache-2.0 */
/* pid.h -- this process's PID namespace, without which a process ID means nothing. */
#ifndef PYVGPU_CORE_PID_H
#define PYVGPU_CORE_PID_H

#include <stdint.h>

/* Inode number of the machine's initial PID namespace, the same since Linux 3.8. */
#define PID_NAMESPACE_HOST 0xeffffffcU

/* The inode number of this process's PID namespace; 0 if /proc does not say. */
uint32_t pid_namespace(void);

#endif
