/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h -- registry of this process's memory pools in device memory. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_POOL_H
#define PYVGPU_SHIM_CUDA_MEMORY_POOL_H

#include "shim/cuda/memory/pool_charge.h"
#include "core/extents.h"

/* Records live as long as the process and are reused. */
struct pool {
    struct pool_charge growth; /* first, so that both pointers are the same; a claim is a block */
    struct extents_owner extents; /* its ranges, for pool_ranges.c */
    uint64_t leaving;             /* bytes of blocks that are in the driver to be freed */
    uint64_t owed;                /* the part of them that others have taken already */
    int grew;                     /* since the last decision whether to follow it */
    int followed;                 /* its blocks are, since the quota is or was short */
    CUmemoryPool handle;          /* NULL: the record belongs to no pool */
    int created;                  /* by the program: not a default pool */
    int destroyed;                /* by the program, while the driver still has memory in it */
    struct pool *next;
};

/* The record of a pool whose memory is charged in this process, by its handle. NULL for one in host
 * memory, one imported from another process, or an invalid handle. */
struct pool *pool_find(CUmemoryPool handle);

/* The quota's index of the device whose memory a pool with these properties takes; -1: none. */
int pool_device(const CUmemPoolProps *props);

/* Whether the program has destroyed the pool, which still exists in the driver. */
int pool_is_destroyed(CUmemoryPool handle);

/* Check a pool before a driver call: an error if it is destroyed. */
CUresult pool_may_ask(CUmemoryPool handle);

/* The pool that cuMemAllocAsync uses on *device*, as the driver says; or NULL and *error*. */
struct pool *pool_current(unsigned device, CUresult *error);

/* A counter, incremented before and after the pool of a device changes. */
unsigned pool_changes(void);

/* The request may have been served from another pool than expected: move its claim to the pool that
 * the memory came from. */
void pool_find_claim(struct claim *claim, unsigned changes);

/* Count blocks that were created in this process without a claim. */
void pool_note_blocks(int more);

/* Count a freed block of a pool or graph. */
void pool_note_free(void);

void pool_after_fork(void);

#endif
