/* SPDX-License-Identifier: Apache-2.0 */
/* primary.h -- primary contexts, which are reference-counted per device. */
#ifndef PYVGPU_CUDA_PRIMARY_H
#define PYVGPU_CUDA_PRIMARY_H

#include "hooks.h"

/* Around a call that may release a primary context for the last time; forgets it if it did. */
void primary_enter(void);
void primary_leave(CUdevice ordinal);

void primary_after_fork(void);

#endif
