/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h -- shares as the handles that programs pass on: descriptors, and fabric handles. */
#ifndef PYVGPU_SIMULATOR_CUDA_HANDLE_H
#define PYVGPU_SIMULATOR_CUDA_HANDLE_H

#include "memory.h"

/* Write a handle of the type to where out points. */
CUresult handle_export(int share, CUmemAllocationHandleType type, void *out);

/* The share a handle means, on a device that the process has, and what tells it from others. */
CUresult handle_import(void *handle, CUmemAllocationHandleType type, int *share, uint64_t *id);

#endif
