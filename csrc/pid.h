/* SPDX-License-Identifier: Apache-2.0 */
/* pid.h -- in which PID namespace this process is: a process ID means nothing without it. */
#ifndef PYVGPU_PID_H
#define PYVGPU_PID_H

#include <stdint.h>

/* The first namespace of a machine has this number in every kernel since it has one. */
#define PID_NAMESPACE_HOST 0xeffffffcU

/* The number of this process's namespace; 0 if /proc does not tell. */
uint32_t pid_namespace(void);

#endif
