/* SPDX-License-Identifier: Apache-2.0 */
/* green.h -- green contexts: parts of a device's processors, in its primary context. */
#ifndef PYVGPU_CUDA_GREEN_H
#define PYVGPU_CUDA_GREEN_H

void green_after_fork(void);

#endif
