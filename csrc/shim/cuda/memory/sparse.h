/* SPDX-License-Identifier: Apache-2.0 */
/* sparse.h -- physical memory mapped into sparse arrays, which keep it alive. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_SPARSE_H
#define PYVGPU_SHIM_CUDA_MEMORY_SPARSE_H

#include <stdint.h>

/* The array was destroyed: drop the memory mapped into it. */
void sparse_forget(uint64_t array);

void sparse_after_fork(void);

#endif
