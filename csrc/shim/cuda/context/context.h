/* SPDX-License-Identifier: Apache-2.0 */
/* context.h -- registry of this process's CUDA contexts: device, reserve and limits of each. */
#ifndef PYVGPU_SHIM_CUDA_CONTEXT_CONTEXT_H
#define PYVGPU_SHIM_CUDA_CONTEXT_CONTEXT_H

#include "shim/hooks.h"
#include "shim/shim.h"

/* The limits below this number reserve device memory. */
#define CONTEXT_LIMITS (CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT + 1)

/* Records live as long as the process and are reused; a record whose handle is NULL belongs to no
 * context. Its address is the owner of allocations, its life distinguishes successive contexts. */
struct context {
    CUcontext handle;
    uint32_t life;   /* incremented once the driver has destroyed the context */
    unsigned device; /* index in the quota */
    int primary;
    int leaving;             /* a thread is in the driver to destroy it */
    unsigned attached;       /* number of attaches beyond its creation, less detaches */
    struct context *is_part; /* the primary context, which owns what is allocated in it */
    uint64_t reserve;        /* bytes charged for the context itself */
    unsigned limits_known;
    size_t limit_standards[CONTEXT_LIMITS]; /* the first values of the known limits */
    struct context *next;
};

/* The record of *handle*, or NULL if the shim has not seen its creation. */
struct context *context_find(CUcontext handle);

static inline uint32_t context_life(const struct context *context)
{
    return __atomic_load_n(&context->life, __ATOMIC_SEQ_CST);
}

/* Register a context whose reserve is charged already. If another thread was faster, its record is
 * returned and the reserve is refunded; NULL if there is no memory for it. */
struct context *context_register(CUcontext handle, unsigned device, int primary, uint64_t reserve);

/* Register *handle* as another name of the primary context of *device*; mark whether a thread is in
 * the driver to destroy it; and remove it once it is destroyed. */
void context_add_part(CUcontext handle, unsigned device);
void context_mark_part(CUcontext handle, int leaving);
void context_remove_part(CUcontext handle);

/* Call *end* for each green context of *primary*. */
void context_each_part(const struct context *primary, void (*end)(CUcontext));

/* The number of known contexts of a device, including other names of one. */
unsigned context_count(unsigned device);

/* The record of the primary context of *device*; NULL if it has none. */
struct context *context_find_primary(unsigned device);

/* The driver has destroyed a context: refund everything that it held in that life. */
void context_forget(struct context *context, uint32_t life);

/* Charge *bytes* more, or less, for the context itself in that life; if that life is over, the
 * bytes are refunded. */
void context_change_reserve(struct context *context, uint32_t life, int64_t bytes);

/* The index in the quota of the device of *handle*; -1 if none. */
int context_device(CUcontext handle);

static inline uint64_t context_reserve(unsigned device)
{
    return shim.limits.devices[device].context_reserve;
}

static inline uint64_t context_green_reserve(unsigned device)
{
    return (uint64_t) shim.limits.devices[device].green_kib << 10;
}

/* The context to push where *handle* must be current for a call: a green context can be current to
 * one thread only, and its events and streams belong to its primary context. */
CUcontext context_to_push(CUcontext handle);

void context_after_fork(void);

#endif
