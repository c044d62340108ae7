/* SPDX-License-Identifier: Apache-2.0 */
/* context.h -- API side of contexts; their work is in process.h. */
#ifndef PYVGPU_SIMULATOR_CUDA_CONTEXT_H
#define PYVGPU_SIMULATOR_CUDA_CONTEXT_H

#include "process.h"
#include "resource.h"

enum { CONTEXT_LIMITS = 16 };

/* The green part of a context; its address is the CUgreenCtx handle. */
struct CUgreenCtx_st {
    bool exists; /* even when its primary context was reset */
    struct processors processors;
    uint64_t primary_id;          /* id of the primary context that it retained */
    struct stream *mark;          /* where it waits for events */
    _Atomic(const void *) thread; /* to which it is current, by its stack; NULL: none */
    unsigned times;               /* that it is on that stack */
};

/* Never freed, so that any handle can be checked; reused once it is gone. */
struct CUctx_st {
    struct work_context work;
    _Atomic uint64_t alive; /* work.id while it can be used, else 0 */
    bool primary;
    bool is_graphics;      /* made for a graphics API, into whose commands its streams may record */
    struct CUctx_st *base; /* the context of its work: itself, or a green one's primary context */
    struct CUgreenCtx_st green;
    unsigned int references; /* of the primary context, or by cuCtxAttach */
    unsigned int flags;
    unsigned int api_version;
    CUfunc_cache cache;
    CUsharedconfig shared;
    size_t limits[CONTEXT_LIMITS];
    uint32_t peers; /* bit per ordinal that it may reach */
    struct CUctx_st *next;
};

/* Guards the list of contexts, references, and the primary contexts' states. */
void context_lock(void);
void context_unlock(void);

/* Default limits; reset the limits to them before a context ends. Lock held. */
extern const size_t context_limits[CONTEXT_LIMITS];
void context_reset_limits(struct CUctx_st *context);

/* Give a context its device and its defaults; it is then alive. Lock held. */
CUresult context_start(struct CUctx_st *context, CUdevice device, unsigned int flags);

/* End a context and free its objects. Lock held. */
void context_end(struct CUctx_st *context);

/* Drop one reference of a live primary context; the last one ends it. Lock held. */
void context_release(struct CUctx_st *context);

/* A context that can be started, reused or new; NULL without memory. Lock held. */
struct CUctx_st *context_take(void);

/* Whether it may become current: a primary context may, before it is retained. */
bool context_may_be_current(CUcontext handle);

/* The primary context of an ordinal, alive or not. */
struct CUctx_st *context_primary(CUdevice device);

/* The live context that has this number; NULL if it is gone. */
struct CUctx_st *context_find_by_id(uint64_t id);

/* The context behind a handle, or the calling thread's where it is NULL; NULL if it is gone. For a
 * green one that is its primary context.
 */
struct CUctx_st *context_choose(CUcontext handle);

/* The same without the last: the green one itself. */
struct CUctx_st *context_named(CUcontext handle);

/* The green context behind its own handle, alive or not; NULL if it is none. Lock held. */
struct CUctx_st *context_green(CUgreenCtx handle);

/* The handle of a green context; NULL if it is none. */
CUgreenCtx context_green_handle(struct CUctx_st *context);

/* --- cuda/current.c --------------------------------------------------------------------- */

/* Make a context current; false without memory. */
bool context_push(struct CUctx_st *context);

/* The calling thread's context, a green one itself; NULL if there is none, or it is gone. */
struct CUctx_st *context_top(void);

void context_pop(void);

#endif
