/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h -- the memory pools of this process that hold device memory. */
#ifndef PYVGPU_CUDA_POOL_H
#define PYVGPU_CUDA_POOL_H

#include "cuda/growth.h"
#include "extents.h"

/* Records live for as long as the process and are used again. */
struct pool {
    struct growth growth;         /* first: what grows is the pool; a claim is a block */
    struct extents_owner extents; /* its part of what poolroom.c knows */
    uint64_t leaving;             /* bytes of blocks that are with the driver to be freed */
    uint64_t owed;                /* of those, what others have taken already */
    int grew;                     /* since it was decided whether it is followed */
    int followed;                 /* its blocks are, since the quota is or was short */
    CUmemoryPool handle;          /* NULL: the record belongs to no pool */
    int created;                  /* by the program, and not a default pool */
    int destroyed;                /* by the program, while the driver still has something in it */
    struct pool *next;
};

/* The record of a pool whose memory is charged in this process, by its handle. NULL for what is in
 * host memory, was imported from another process, or is not a pool. */
struct pool *pool_find(CUmemoryPool handle);

/* The index in the quota of the device that a pool made so takes memory from; -1 if of none. */
int pool_device(const CUmemPoolProps *props);

/* Whether the program has destroyed the pool, which the driver does not know yet. */
int pool_is_destroyed(CUmemoryPool handle);

/* What to answer about a pool before the driver is asked: an error if it is destroyed. */
CUresult pool_may_ask(CUmemoryPool handle);

/* The pool that cuMemAllocAsync takes from on *device*: the driver's word, or *error*. */
struct pool *pool_current(unsigned device, CUresult *error);

/* Counted up before and after the pool of a device changes. */
unsigned pool_changes(void);

/* The request may have been served from another pool than was thought: its claim goes to where
 * the memory came from. */
void pool_find_claim(struct claim *claim, unsigned changes);

/* As many blocks as that came into being in this process without a claim. */
void pool_note_blocks(int more);

/* A block that was not linear memory was freed. */
void pool_note_free(void);

void pool_after_fork(void);

#endif
