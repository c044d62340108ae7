/* SPDX-License-Identifier: Apache-2.0 */
/* primary.c -- the reference-counted primary context of each device. */
#include <stdatomic.h>

#include "context.h"

enum { VALID_FLAGS = CU_CTX_FLAGS_MASK };

/* Flags of the next primary context of each device; kept while there is none. */
static unsigned int next_flags[CONFIG_DEVICES];

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    struct CUctx_st *context;
    CUresult result = CUDA_SUCCESS;

    ENTER();
    REQUIRE(handle);
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    context_lock();
    context = context_primary(device);
    if (atomic_load(&context->alive))
        context->references++;
    else
        result = context_start(context, device, next_flags[device]);
    context_unlock();
    if (result == CUDA_SUCCESS)
        *handle = context;
    return result;
}

/* Drop one reference, or all of them. */
static CUresult release(CUdevice device, bool all)
{
    struct CUctx_st *context;
    CUresult result = CUDA_SUCCESS;

    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    context_lock();
    context = context_primary(device);
    if (!atomic_load(&context->alive))
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    else if (all)
        context_end(context);
    else
        context_release(context);
    context_unlock();
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER();
    return release(device, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENTER();
    return release(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER();
    return release(device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    ENTER();
    return release(device, true);
}

static CUresult set_flags(CUdevice device, unsigned int flags)
{
    struct CUctx_st *context;

    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned int) VALID_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    context_lock();
    context = context_primary(device);
    next_flags[device] = flags;
    if (atomic_load(&context->alive))
        context->flags = flags;
    context_unlock();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    ENTER();
    return set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    ENTER();
    return set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER();
    REQUIRE(flags && active);
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *active = atomic_load(&context_primary(device)->alive) != 0;
    *flags = *active ? context_primary(device)->flags : next_flags[device];
    return CUDA_SUCCESS;
}
