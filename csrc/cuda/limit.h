/* SPDX-License-Identifier: Apache-2.0 */
/* limit.h -- the limits of contexts that set device memory aside. */
#ifndef PYVGPU_CUDA_LIMIT_H
#define PYVGPU_CUDA_LIMIT_H

void limit_after_fork(void);

#endif
