/* SPDX-License-Identifier: Apache-2.0 */
/* context.h -- the contexts of this process: their device, their reserve, what they hold. */
#ifndef PYVGPU_CUDA_CONTEXT_H
#define PYVGPU_CUDA_CONTEXT_H

#include "hooks.h"
#include "shim.h"

/* The limits below this number set device memory aside. */
#define CONTEXT_LIMITS (CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT + 1)

/* Records live for as long as the process and are used again; a record whose handle is NULL
 * belongs to no context. Its address is the owner of allocations, its life says of which. */
struct context {
    CUcontext handle;
    uint32_t life;   /* counted up when the driver has said that the context is gone */
    unsigned device; /* index in the quota */
    int primary;
    int leaving;             /* a thread is with the driver to destroy it */
    unsigned attached;       /* how often beyond its creation; detaching takes one away */
    struct context *is_part; /* of a primary context, which holds what is allocated in it */
    uint64_t reserve;        /* bytes charged for the context itself */
    unsigned limits_known;
    size_t limit_standards[CONTEXT_LIMITS]; /* what the known ones were at first */
    struct context *next;
};

/* The record of *handle*, or NULL if the shim has not seen it made. */
struct context *context_find(CUcontext handle);

static inline uint32_t context_life(const struct context *context)
{
    return __atomic_load_n(&context->life, __ATOMIC_SEQ_CST);
}

/* Remember a context whose reserve is charged already. If another thread was faster its record
 * is returned and the reserve is given back; NULL without memory. */
struct context *context_register(CUcontext handle, unsigned device, int primary, uint64_t reserve);

/* Remember *handle* for another name of the primary context of *device*; say whether a thread is
 * with the driver to end it, and forget it when it has ended. */
void context_add_part(CUcontext handle, unsigned device);
void context_mark_part(CUcontext handle, int leaving);
void context_remove_part(CUcontext handle);

/* Call *end* for each green context of *primary*. */
void context_each_part(const struct context *primary, void (*end)(CUcontext));

/* How many contexts a device has, of those that were seen; with other names of one. */
unsigned context_count(unsigned device);

/* The record of the primary context of *device*; NULL if it has none. */
struct context *context_find_primary(unsigned device);

/* The driver says that a context is gone: give back what it held in that life. */
void context_forget(struct context *context, uint32_t life);

/* *bytes* more, or less, are charged for the context itself in that life of it; if that is over
 * they are given back. */
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

/* What to push where *handle* must be current for a call: a green context can be current to one
 * thread only, and its events and streams are its primary context's. */
CUcontext context_to_push(CUcontext handle);

/* Whether *stream* is an object with a context of its own, and not one of the default streams,
 * which belong to the context that is current. */
static inline int context_owns_stream(CUstream stream)
{
    return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

void context_after_fork(void);

#endif
