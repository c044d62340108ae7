/* SPDX-License-Identifier: Apache-2.0 */
/* poolshare.h -- memory pools shared between processes. */
#ifndef PYVGPU_CUDA_POOLSHARE_H
#define PYVGPU_CUDA_POOLSHARE_H

#include "hooks.h"

/* The program destroys a pool that it has not created, for example an imported one. */
CUresult poolshare_destroy(CUmemoryPool handle);

#endif
