/* SPDX-License-Identifier: Apache-2.0 */
/* limit.h -- context limits (cuCtxSetLimit) that reserve device memory. */
#ifndef PYVGPU_CUDA_LIMIT_H
#define PYVGPU_CUDA_LIMIT_H

void limit_after_fork(void);

#endif
