/* SPDX-License-Identifier: Apache-2.0 */
/* context_limit.h -- context limits (cuCtxSetLimit) that reserve device memory. */
#ifndef PYVGPU_SHIM_CUDA_CONTEXT_CONTEXT_LIMIT_H
#define PYVGPU_SHIM_CUDA_CONTEXT_CONTEXT_LIMIT_H

void context_limit_after_fork(void);

#endif
