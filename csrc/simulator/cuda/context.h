/* SPDX-License-Identifier: Apache-2.0 */
/* context.h -- contexts as the API sees them; the work in them is process.h's. */
#ifndef PYVGPU_SIMULATOR_CUDA_CONTEXT_H
#define PYVGPU_SIMULATOR_CUDA_CONTEXT_H

#include "process.h"
#include "resource.h"

enum { CONTEXT_LIMITS = 16 };

/* What makes a context a green one; its address is the handle of that. */
struct CUgreenCtx_st {
    bool exists; /* even when its primary context was reset */
    struct processors processors;
    uint64_t primary_id;          /* the life of the primary context that it retained */
    struct stream *mark;          /* where it waits for events */
    _Atomic(const void *) thread; /* to which it is current, by its stack; NULL: none */
    unsigned times;               /* that it is on that stack */
};

/* Never freed, so that a handle can always be looked at; used again once it is gone. */
struct CUctx_st {
    struct work_context work;
    _Atomic uint64_t alive; /* work.id while it can be used, else 0 */
    bool primary;
    bool is_graphics;      /* made for a graphics API, into whose commands its streams may record */
    struct CUctx_st *base; /* what work is done in: itself, or a green one's primary context */
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

/* What limits are unless somebody sets them; set them so, before a context ends. Lock held. */
extern const size_t context_limits[CONTEXT_LIMITS];
void context_reset_limits(struct CUctx_st *context);

/* Give a context its device and its defaults: it is alive after it. Lock held. */
CUresult context_start(struct CUctx_st *context, CUdevice device, unsigned int flags);

/* End a context: what was made in it goes. Lock held. */
void context_end(struct CUctx_st *context);

/* The same by one reference less of a primary context that is alive. Lock held. */
void context_release(struct CUctx_st *context);

/* A context that is gone, or a new one, to be started; NULL without memory. Lock held. */
struct CUctx_st *context_take(void);

/* Whether it may become current: a primary context may, before it is retained. */
bool context_may_be_current(CUcontext handle);

/* The primary context of an ordinal, alive or not. */
struct CUctx_st *context_primary(CUdevice device);

/* The live context that has this number; NULL if it is gone. */
struct CUctx_st *context_numbered(uint64_t id);

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
