/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h -- a memory pool: of this process, or another one's. */
#ifndef PYVGPU_SIMULATOR_CUDA_POOL_H
#define PYVGPU_SIMULATOR_CUDA_POOL_H

#include "cuda/reserve.h"
#include "memory.h"

enum { REUSE_ATTRIBUTES = 3 };

enum pool_home { POOL_ON_DEVICE, POOL_MANAGED, POOL_ON_HOST, POOL_HOMES };

struct pool {
    uint32_t magic;
    enum pool_home home;
    struct pool *next;
    struct reserve reserve;
    int reuse[REUSE_ATTRIBUTES];
    uint64_t threshold;
    CUmemAllocationHandleType handle_types; /* by which it may be exported */
    bool is_default;
    bool is_destroyed; /* goes with its last block */
    void *holder;      /* of another process's pool: nothing can be allocated from it */
};

/* The innermost lock: nothing is called with it but the machine's counting. */
extern pthread_mutex_t pool_lock;

/* The pool behind a handle; NULL if it is none. */
struct pool *pool_find(CUmemoryPool handle);

/* A new one, or NULL. Lock held. */
struct pool *pool_add(enum pool_home home, uint32_t device);

/* So many of its bytes are not in use any more. Lock held. */
void pool_note_unused(struct pool *pool, uint64_t bytes);

/* --- cuda/poolobject.c ------------------------------------------------------------------------ */

/* The pool that serves requests there which name none; NULL without memory. */
struct pool *pool_chosen(enum pool_home home, uint32_t device);

/* --- cuda/poolshare.c ------------------------------------------------------------------------- */

/* The importer has no use for the pool any more. */
CUresult pool_close_import(struct pool *pool);

#endif
