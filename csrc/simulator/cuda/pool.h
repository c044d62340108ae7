/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h -- memory pools, of this process or imported. */
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
    bool is_destroyed; /* freed with its last block */
    void *holder;      /* of another process's pool: nothing can be allocated from it */
};

/* The innermost lock: only the machine's accounting is called with it held. */
extern pthread_mutex_t pool_lock;

/* The pool behind a handle; NULL if it is none. */
struct pool *pool_find(CUmemoryPool handle);

/* A new one, or NULL. Lock held. */
struct pool *pool_add(enum pool_home home, uint32_t device);

/* Record that so many of its bytes are no longer in use. Lock held. */
void pool_note_unused(struct pool *pool, uint64_t bytes);

/* --- cuda/poolobject.c ------------------------------------------------------------------------ */

/* The current pool of that location, for requests that name none; NULL without memory. */
struct pool *pool_chosen(enum pool_home home, uint32_t device);

/* --- cuda/poolshare.c ------------------------------------------------------------------------- */

/* Close an imported pool. */
CUresult pool_close_import(struct pool *pool);

#endif
