/* SPDX-License-Identifier: Apache-2.0 */
/* sparse.h -- physical memory that is mapped into arrays, and so kept by them. */
#ifndef PYVGPU_CUDA_SPARSE_H
#define PYVGPU_CUDA_SPARSE_H

#include <stdint.h>

/* The array is gone, and what was mapped into it is not any more. */
void sparse_forget(uint64_t array);

void sparse_after_fork(void);

#endif
