/* SPDX-License-Identifier: Apache-2.0 */
/* green.h -- green contexts: parts of a device's processors, in its primary context. */
#ifndef PYVGPU_CUDA_GREEN_H
#define PYVGPU_CUDA_GREEN_H

/* Ask again what green contexts are called of which the driver has not said it; 1 if it has now. */
int green_name(void);

/* Whether *device* has green contexts, which keep its primary context. */
int green_exists(unsigned device);

void green_after_fork(void);

#endif
