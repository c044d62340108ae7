/* SPDX-License-Identifier: Apache-2.0 */
/* pool_share.h -- memory pools shared between processes. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_POOL_SHARE_H
#define PYVGPU_SHIM_CUDA_MEMORY_POOL_SHARE_H

#include "shim/hooks.h"

/* The program destroys a pool that it has not created, for example an imported one. */
CUresult pool_share_destroy(CUmemoryPool handle);

#endif
