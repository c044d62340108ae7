/* SPDX-License-Identifier: Apache-2.0 */
/* primary.h -- primary contexts, which are reference-counted per device. */
#ifndef PYVGPU_SHIM_CUDA_CONTEXT_PRIMARY_H
#define PYVGPU_SHIM_CUDA_CONTEXT_PRIMARY_H

#include "shim/hooks.h"

/* Around a call that may release a primary context for the last time; forgets it if it did. */
void primary_enter(void);
void primary_leave(CUdevice ordinal);

void primary_after_fork(void);

#endif
