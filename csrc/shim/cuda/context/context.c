/* SPDX-License-Identifier: Apache-2.0 */
/* context.c -- registry of contexts, and the hooks that create and destroy them.
 *
 * A context takes device memory of its own, so its reserve is charged before it is created. Once
 * the driver has destroyed a context, everything that it held is refunded at once.
 */
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/pool_charge.h"
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"
#include "shim/lifecycle.h"
#include "core/mutex.h"

#include <pthread.h>
#include <stdlib.h>

static struct context *contexts; /* only ever grows at the head; read without a lock */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

/* If a context that is being destroyed and a new one have the same address, find the new one. */
static inline struct context *find_record(CUcontext handle)
{
    struct context *context = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);
    struct context *leaving = NULL;

    for (; context; context = context->next) {
        if (__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) != handle)
            continue;
        if (likely(!__atomic_load_n(&context->leaving, __ATOMIC_ACQUIRE)))
            return context;
        leaving = context;
    }
    return leaving;
}

static inline struct context *whole_of(struct context *record)
{
    return unlikely(record && record->is_part) ? record->is_part : record;
}

struct context *context_find(CUcontext handle)
{
    return whole_of(find_record(handle));
}

CUcontext context_to_push(CUcontext handle)
{
    const struct context *context = context_find(handle);
    CUcontext found = context ? __atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) : NULL;

    return found ? found : handle;
}

/* The record of *handle*, unless it is being destroyed; lock held. */
static struct context *find_staying(CUcontext handle)
{
    struct context *record = find_record(handle);

    return record && !record->leaving ? whole_of(record) : NULL;
}

static struct context *unused_record(void)
{
    struct context *context = find_record(NULL);

    if (!context) {
        context = calloc(1, sizeof(*context));
        if (!context)
            return NULL;
        context->next = contexts;
        __atomic_store_n(&contexts, context, __ATOMIC_RELEASE);
    }
    context->is_part = NULL;
    context->leaving = 0;
    return context;
}

struct context *context_register(CUcontext handle, unsigned device, int primary, uint64_t reserve)
{
    struct context *context;

    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    context = find_staying(handle);
    if (context) {
        context->primary |= primary; /* it may have been in use before it was retained here */
        ledger_refund(&shim.ledger, device, reserve);
    } else {
        context = unused_record();
        if (context) {
            context->device = device;
            context->primary = primary;
            context->reserve = reserve;
            context->limits_known = 0;
            context->attached = 0;
            __atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
        }
    }
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
    return context;
}

void context_change_reserve(struct context *context, uint32_t life, int64_t bytes)
{
    unsigned device = context->device;
    int over;

    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    over = context_life(context) != life;
    if (!over)
        context->reserve += (uint64_t) bytes;
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
    if (bytes < 0 && !over)
        ledger_refund(&shim.ledger, device, (uint64_t) -bytes);
    else if (bytes > 0 && over)
        ledger_refund(&shim.ledger, device, (uint64_t) bytes);
}

int context_device(CUcontext handle)
{
    struct context *context = context_find(handle);
    CUdevice ordinal;
    CUresult result;

    if (likely(context))
        return (int) context->device;
    if (driver.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
        return -1;
    result = driver.cuCtxGetDevice(&ordinal);
    driver.cuCtxPopCurrent_v2(&handle);
    return result == CUDA_SUCCESS ? shim_device(ordinal) : -1;
}

/* A thread that enters an allocation reads the life afterwards, so that either we take the
 * allocation out or that thread does. */
void context_forget(struct context *context, uint32_t life)
{
    unsigned device = context->device;
    uint64_t reserve;

    if (!__atomic_compare_exchange_n(&context->life, &life, life + 1, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return;
    lifecycle_context_ended(context);
    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    reserve = context->reserve;
    for (struct context *part = contexts; part; part = part->next)
        if (part->is_part == context)
            __atomic_store_n(&part->handle, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&context->leaving, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
    ledger_refund(&shim.ledger, device, reserve);
    pool_charge_reread((int) device);
}

struct context *context_find_primary(unsigned device)
{
    struct context *context = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);

    while (context && !(context->handle && context->primary && context->device == device))
        context = context->next;
    return context;
}

unsigned context_count(unsigned device)
{
    unsigned count = 0;

    for (struct context *context = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE); context;
         context = context->next)
        count += context->handle && context->device == device;
    return count;
}

void context_add_part(CUcontext handle, unsigned device)
{
    struct context *primary;
    struct context *part;

    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    primary = context_find_primary(device);
    part = primary && !find_staying(handle) ? unused_record() : NULL;
    /* Without a record it will be found when it is used, and charged as a context. */
    if (part) {
        part->device = device;
        part->primary = 0;
        part->is_part = primary;
        __atomic_store_n(&part->handle, handle, __ATOMIC_RELEASE);
    }
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
}

void context_mark_part(CUcontext handle, int leaving)
{
    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    for (struct context *part = contexts; part && handle; part = part->next)
        if (part->handle == handle && part->is_part)
            __atomic_store_n(&part->leaving, leaving, __ATOMIC_RELEASE);
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
}

void context_remove_part(CUcontext handle)
{
    mutex_lock(&registry_lock, LOCK_CONTEXTS);
    for (struct context *part = contexts; part && handle; part = part->next)
        if (part->handle == handle && part->is_part && part->leaving)
            __atomic_store_n(&part->handle, NULL, __ATOMIC_RELEASE);
    mutex_unlock(&registry_lock, LOCK_CONTEXTS);
}

void context_each_part(const struct context *primary, void (*end)(CUcontext))
{
    struct context *part = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);

    for (; part; part = part->next) {
        CUcontext handle = __atomic_load_n(&part->handle, __ATOMIC_ACQUIRE);

        if (handle && part->is_part == primary)
            end(handle);
    }
}

void context_after_fork(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    contexts = NULL;
}

/* The body of hooks that create one: charge the reserve, call the driver, register or refund. */
#define CREATE_CONTEXT(symbol, ...)                                                  \
    do {                                                                             \
        int device;                                                                  \
        CUresult result;                                                             \
                                                                                     \
        if (!shim.open)                                                              \
            return CUDA_ERROR_NOT_INITIALIZED;                                       \
        device = context ? shim_device(ordinal) : -1;                                \
        if (device < 0) /* not a device, or nowhere to put it: the driver says so */ \
            return driver.symbol(__VA_ARGS__);                                       \
        result = charge_reserve((unsigned) device);                                  \
        if (result != CUDA_SUCCESS)                                                  \
            return result;                                                           \
        result = driver.symbol(__VA_ARGS__);                                         \
        return settle_created(result, context, (unsigned) device);                   \
    } while (0)

static CUresult charge_reserve(unsigned device)
{
    return charge_device(device, context_reserve(device));
}

static CUresult settle_created(CUresult result, const CUcontext *context, unsigned device)
{
    if (result == CUDA_SUCCESS && context_register(*context, device, 0, context_reserve(device)))
        return CUDA_SUCCESS;
    ledger_refund(&shim.ledger, device, context_reserve(device));
    if (result != CUDA_SUCCESS)
        return result;
    driver.cuCtxDestroy_v2(*context);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Contexts that interoperate with another API; plain C types stand for those of cudaVDPAU.h. */
CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
    CREATE_CONTEXT(cuGLCtxCreate, context, flags, ordinal);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
    CREATE_CONTEXT(cuGLCtxCreate_v2, context, flags, ordinal);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal, uint32_t shown,
                          void *get)
{
    CREATE_CONTEXT(cuVDPAUCtxCreate, context, flags, ordinal, shown, get);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal,
                             uint32_t shown, void *get)
{
    CREATE_CONTEXT(cuVDPAUCtxCreate_v2, context, flags, ordinal, shown, get);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
    CREATE_CONTEXT(cuCtxCreate, context, flags, ordinal);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
    CREATE_CONTEXT(cuCtxCreate_v2, context, flags, ordinal);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int affinity_count,
                        unsigned int flags, CUdevice ordinal)
{
    CREATE_CONTEXT(cuCtxCreate_v3, context, affinities, affinity_count, flags, ordinal);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                        CUdevice ordinal)
{
    CREATE_CONTEXT(cuCtxCreate_v4, context, params, flags, ordinal);
}

static CUresult destroy(CUresult (*destroyer)(CUcontext), CUcontext handle)
{
    struct context *context;
    uint32_t life = 0;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    context = handle ? context_find(handle) : NULL;
    if (context) {
        life = context_life(context);
        __atomic_store_n(&context->leaving, 1, __ATOMIC_SEQ_CST);
    }
    pace_end_context(handle);
    result = destroyer(handle);
    if (result == CUDA_SUCCESS)
        pace_ended_context(handle);
    if (context && result == CUDA_SUCCESS)
        context_forget(context, life);
    else if (context)
        __atomic_store_n(&context->leaving, 0, __ATOMIC_RELEASE);
    return result;
}

CUresult cuCtxAttach(CUcontext *handle, unsigned int flags)
{
    struct charge charge;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuCtxAttach(handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    /* It is the current one. If it is unknown, register it, or detaching would count as its end. */
    result = charge_current(&charge, 0);
    if (result == CUDA_SUCCESS && charge_settle_context(&charge)) {
        __atomic_add_fetch(&charge.context->attached, 1, __ATOMIC_SEQ_CST);
        return CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        charge_refund(&charge);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver.cuCtxDetach(*handle);
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(driver.cuCtxDestroy, context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(driver.cuCtxDestroy_v2, context);
}

CUresult cuCtxDetach(CUcontext handle)
{
    struct context *context = shim.open && handle ? context_find(handle) : NULL;
    unsigned attached = context ? __atomic_load_n(&context->attached, __ATOMIC_SEQ_CST) : 0;
    CUresult result;

    /* Undo one attach, or destroy the context if there was none. */
    while (attached && !__atomic_compare_exchange_n(&context->attached, &attached, attached - 1, 0,
                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    if (!attached)
        return destroy(driver.cuCtxDetach, handle);
    result = driver.cuCtxDetach(handle);
    if (result != CUDA_SUCCESS)
        __atomic_add_fetch(&context->attached, 1, __ATOMIC_SEQ_CST);
    return result;
}
