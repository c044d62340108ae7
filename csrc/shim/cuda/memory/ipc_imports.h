/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_imports.h -- reference-counted list of other processes' memory that this process has open.
 *
 * The driver counts, too: opening a handle again gives the same address, which stays open until it
 * was closed as often.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_IPC_IMPORTS_H
#define PYVGPU_SHIM_CUDA_MEMORY_IPC_IMPORTS_H

#include "shim/cuda/memory/charge.h"

/* The driver opened memory at the address of *allocation*, which has its link or its charge; if it
 * was open already, these are released again. 0 or -ENOMEM. */
int ipc_imports_add(const struct allocation *allocation);

/* The driver is about to close *address*: *taken* is to be released then; it is empty if the
 * address was opened more often. 0 if it is not open. */
int ipc_imports_take(CUdeviceptr address, struct allocation *taken);

/* The memory that was opened in it is closed. */
void ipc_imports_context_ended(const struct context *owner);

void ipc_imports_after_fork(void);

#endif
