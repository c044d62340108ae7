/* SPDX-License-Identifier: Apache-2.0 */
/* share.h -- exports and imports of allocations, and which process pays for them (shared_memory.h).
 *
 * An allocation with a link is shared. If it has bytes, this process exports it, and they stay
 * charged until no process has it open; if it has none, it was imported, and its owner pays.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_SHARE_H
#define PYVGPU_SHIM_CUDA_MEMORY_SHARE_H

#include "core/allocations.h"
#include "shim/hooks.h"

/* Let others open *allocation*, an entry of the table: its link, or 0 if they must not. */
uint16_t share_export(const struct allocation *allocation, uint64_t key);

/* The key of memory that has this IPC handle. */
uint64_t share_ipc_key(const CUipcMemHandle *handle);

/* The driver wrote a handle to *shareable*, by which others can open *bytes* charged on *device*.
 * Returns their link: a new one, unless *link* exists already; 0: they must not be shared. */
uint16_t share_offer(uint16_t link, unsigned device, uint64_t bytes, const void *shareable,
                     CUmemAllocationHandleType type);

/* The link of memory with *key* that this process is about to open, if another process of the
 * container pays for it; 0 if this one must. */
uint16_t share_import(uint64_t key);

/* A handle that the program imports, copied so that the program cannot change it meanwhile. */
struct shared {
    CUmemAllocationHandleType type; /* none: nothing is held */
    int descriptor;                 /* a copy */
    CUmemFabricHandle fabric;
};

/* Copy it; returns what to pass to the driver. */
void *share_hold(struct shared *shared, void *shareable, CUmemAllocationHandleType type);
void share_let_go(struct shared *shared);

/* Look up *shared*, and fill *opened*: for an export of the container, its link; or its bytes and
 * device, if the export is ending, so that this process must pay; or neither, if it comes from
 * elsewhere. */
void share_find(const struct shared *shared, struct allocation *opened);

/* The driver opened memory at the address of *opened*: unless its owner pays, charge it, to its own
 * device or, if the driver does not name one, to the device in *opened*. */
CUresult share_pay(struct allocation *opened);

/* Invalidate the handle in *shareable*, since it must not be shared after all: OUT_OF_MEMORY. */
CUresult share_take_back(void *shareable, CUmemAllocationHandleType type);

#endif
