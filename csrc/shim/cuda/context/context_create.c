/* SPDX-License-Identifier: Apache-2.0 */
/* context_create.c -- hooks that create and destroy contexts.
 *
 * A context takes device memory of its own, so its reserve is charged before it is created. Once
 * the driver has destroyed a context, everything that it held is refunded at once.
 */
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"

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
