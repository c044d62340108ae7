/* SPDX-License-Identifier: Apache-2.0 */
/* green.h -- green contexts: partitions of a device's SMs, in its primary context. */
#ifndef PYVGPU_SHIM_CUDA_CONTEXT_GREEN_H
#define PYVGPU_SHIM_CUDA_CONTEXT_GREEN_H

/* Retry to get the context handles of green contexts that have none yet; 1 if one was found. */
int green_name(void);

/* Whether *device* has green contexts, which keep its primary context alive. */
int green_exists(unsigned device);

void green_after_fork(void);

#endif
