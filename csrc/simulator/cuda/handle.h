/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h -- handles of exported memory: file descriptors and fabric handles. */
#ifndef PYVGPU_SIMULATOR_CUDA_HANDLE_H
#define PYVGPU_SIMULATOR_CUDA_HANDLE_H

#include "memory.h"

/* Write a handle of the type to *out. */
CUresult handle_export(int share, CUmemAllocationHandleType type, void *out);

/* The share that a handle refers to, on a device that the process has, and the share's id. */
CUresult handle_import(void *handle, CUmemAllocationHandleType type, int *share, uint64_t *id);

#endif
