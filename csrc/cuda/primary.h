/* SPDX-License-Identifier: Apache-2.0 */
/* primary.h -- primary contexts, which are shared by all who retain them. */
#ifndef PYVGPU_CUDA_PRIMARY_H
#define PYVGPU_CUDA_PRIMARY_H

#include "hooks.h"

/* Around whatever may be the last release of a primary context; it is forgotten if it was. */
void primary_enter(void);
void primary_leave(CUdevice ordinal);

void primary_after_fork(void);

#endif
