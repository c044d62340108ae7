/* SPDX-License-Identifier: Apache-2.0 */
/* context.c -- hooks that create and end contexts.
 *
 * A context takes device memory of its own, so its reserve is charged before it is made. When the
 * driver says that a context is gone, everything that it held is given back in one go.
 */
#include "cuda/context.h"
#include "cuda/charge.h"
#include "cuda/deferred.h"
#include "cuda/growth.h"
#include "cuda/opened.h"
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

static struct context *contexts; /* only ever grows at the head; read without a lock */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

/* Retain, release and reset of primary contexts, one at a time as in the driver: whether a release
 * was the last must not change between asking and acting. Never taken by any other hook, but
 * recursive: the driver tells profilers of a new context, and these may ask for it. */
static pthread_mutex_t primary_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

struct context *context_find(CUcontext handle)
{
    struct context *context = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);
    struct context *leaving = NULL;

    /* Of a context on its way out and a new one at the same address the new one is meant. */
    for (; context; context = context->next) {
        if (__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) != handle)
            continue;
        if (likely(!__atomic_load_n(&context->leaving, __ATOMIC_ACQUIRE)))
            return context;
        leaving = context;
    }
    return leaving;
}

static struct context *unused_record(void)
{
    struct context *context = context_find(NULL);

    if (context)
        return context;
    context = calloc(1, sizeof(*context));
    if (context) {
        context->next = contexts;
        __atomic_store_n(&contexts, context, __ATOMIC_RELEASE);
    }
    return context;
}

struct context *context_register(CUcontext handle, unsigned device, int primary, uint64_t reserve)
{
    struct context *context;

    pthread_mutex_lock(&registry_lock);
    context = context_find(handle);
    if (context && !context->leaving) {
        context->primary |= primary; /* it may have come into use before it was retained here */
        ledger_refund(&shim.ledger, device, reserve);
    } else {
        context = unused_record();
        if (context) {
            context->device = device;
            context->primary = primary;
            context->reserve = reserve;
            context->limits_known = 0;
            __atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&registry_lock);
    return context;
}

void context_change_reserve(struct context *context, uint32_t life, int64_t bytes)
{
    unsigned device = context->device;
    int over;

    pthread_mutex_lock(&registry_lock);
    over = context_life(context) != life;
    if (!over)
        context->reserve += (uint64_t) bytes;
    pthread_mutex_unlock(&registry_lock);
    if (bytes < 0 && !over)
        ledger_refund(&shim.ledger, device, (uint64_t) -bytes);
    else if (bytes > 0 && over)
        ledger_refund(&shim.ledger, device, (uint64_t) bytes);
}

int context_device(CUcontext handle)
{
    struct context *context = context_find(handle);
    CUdevice ordinal;

    if (likely(context))
        return (int) context->device;
    return driver.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? shim_device(ordinal) : -1;
}

/* The driver says that a context is gone: give back what it held in that life. Whoever enters an
 * allocation looks at the life after that, so that either we take it or they do. */
static void forget(struct context *context, uint32_t life)
{
    unsigned device = context->device;
    uint64_t reserve;

    if (!__atomic_compare_exchange_n(&context->life, &life, life + 1, 0, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
        return;
    deferred_forget(context);
    opened_forget(context);
    charge_release_owned(context);
    pthread_mutex_lock(&registry_lock);
    reserve = context->reserve;
    __atomic_store_n(&context->leaving, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&registry_lock);
    ledger_refund(&shim.ledger, device, reserve);
    growth_reread((int) device);
}

static struct context *find_primary(unsigned device)
{
    struct context *context = __atomic_load_n(&contexts, __ATOMIC_ACQUIRE);

    while (context && !(context->handle && context->primary && context->device == device))
        context = context->next;
    return context;
}

void context_after_fork(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    primary_lock = (pthread_mutex_t) PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    contexts = NULL;
}

/* One shape for all four creators: charge the reserve, ask, register or refund. */
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
    result = destroyer(handle);
    if (context && result == CUDA_SUCCESS)
        forget(context, life);
    else if (context)
        __atomic_store_n(&context->leaving, 0, __ATOMIC_RELEASE);
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

CUresult cuCtxDetach(CUcontext context)
{
    return destroy(driver.cuCtxDetach, context);
}

/* Nobody has the primary context yet: it takes its reserve, as a created one does. */
static CUresult retain_first(CUcontext *context, CUdevice ordinal, unsigned device)
{
    CUresult result = charge_reserve(device);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver.cuDevicePrimaryCtxRetain(context, ordinal);
    if (result == CUDA_SUCCESS && context_register(*context, device, 1, context_reserve(device)))
        return CUDA_SUCCESS;
    ledger_refund(&shim.ledger, device, context_reserve(device));
    if (result != CUDA_SUCCESS)
        return result;
    driver.cuDevicePrimaryCtxRelease_v2(ordinal);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    int device = shim_device(ordinal);
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || device < 0)
        return driver.cuDevicePrimaryCtxRetain(context, ordinal);

    pthread_mutex_lock(&primary_lock);
    if (find_primary((unsigned) device))
        result = driver.cuDevicePrimaryCtxRetain(context, ordinal);
    else
        result = retain_first(context, ordinal, (unsigned) device);
    pthread_mutex_unlock(&primary_lock);
    return result;
}

/* Forget the primary context if the driver no longer has it active. */
static void forget_inactive_primary(CUdevice ordinal)
{
    int device = shim_device(ordinal);
    struct context *context = device >= 0 ? find_primary((unsigned) device) : NULL;
    unsigned int flags;
    int active = 1;

    if (context && driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS &&
        !active)
        forget(context, context_life(context));
}

static CUresult end_primary(CUresult (*ender)(CUdevice), CUdevice ordinal)
{
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&primary_lock);
    result = ender(ordinal);
    if (result == CUDA_SUCCESS)
        forget_inactive_primary(ordinal);
    pthread_mutex_unlock(&primary_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxRelease, ordinal);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxRelease_v2, ordinal);
}

CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxReset, ordinal);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxReset_v2, ordinal);
}
