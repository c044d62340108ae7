/* SPDX-License-Identifier: Apache-2.0 */
/* poolshare.h -- memory pools that other processes have. */
#ifndef PYVGPU_CUDA_POOLSHARE_H
#define PYVGPU_CUDA_POOLSHARE_H

#include "hooks.h"

/* The program destroys a pool that is not its own. */
CUresult poolshare_destroy(CUmemoryPool handle);

#endif
