/* SPDX-License-Identifier: Apache-2.0 */
/* green_create.c -- hooks that create and destroy green contexts.
 *
 * A green context has queues of its own, for which it takes less memory than a context does: the
 * quota says how much. It retains the primary context of its device, and memory allocated in it
 * belongs to the primary context: it stays there when the green context is destroyed.
 */
#include "shim/cuda/context/green.h"
#include "shim/cuda/context/primary.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"

#include <stdlib.h>

/* The primary context exists, is charged and retained. */
static CUresult create(struct green *green, CUdevResourceDesc resources, CUdevice ordinal,
                       unsigned int flags)
{
    uint64_t reserve = context_green_reserve(green->device);
    CUresult result = CUDA_SUCCESS;

    if (reserve)
        result = charge_device(green->device, reserve);
    if (result != CUDA_SUCCESS)
        return result;
    green->bytes = reserve;
    result = driver.cuGreenCtxCreate(&green->handle, resources, ordinal, flags);
    if (result != CUDA_SUCCESS) {
        ledger_refund(&shim.ledger, green->device, reserve);
        return result;
    }
    green_add(green);
    green_name(); /* now: the driver may return that handle before the program asks for it */
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc resources, CUdevice ordinal,
                          unsigned int flags)
{
    int device = shim_device(ordinal);
    struct green *green;
    CUcontext primary;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle || !resources || device < 0)
        return driver.cuGreenCtxCreate(handle, resources, ordinal, flags);
    green = calloc(1, sizeof(*green));
    if (!green)
        return CUDA_ERROR_OUT_OF_MEMORY;
    green->device = (unsigned) device;
    primary_enter(); /* a reset meanwhile would make the reference one of another context */
    result = cuDevicePrimaryCtxRetain(&primary, ordinal);
    if (result == CUDA_SUCCESS) {
        result = create(green, resources, ordinal, flags);
        cuDevicePrimaryCtxRelease_v2(ordinal);
    }
    primary_leave(ordinal);
    if (result == CUDA_SUCCESS)
        *handle = green->handle;
    else
        free(green);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    struct green *green;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    green = green_take(handle); /* before the driver can reuse its handle */
    if (!green)
        return driver.cuGreenCtxDestroy(handle);
    primary_enter();
    context_mark_part(green->context, 1);
    pace_end_context(green->context);
    result = driver.cuGreenCtxDestroy(handle);
    if (result == CUDA_SUCCESS) {
        pace_ended_context(green->context);
        context_remove_part(green->context);
        ledger_refund(&shim.ledger, green->device, green->bytes);
    } else {
        context_mark_part(green->context, 0);
    }
    primary_leave(shim_ordinal((int) green->device));
    if (result == CUDA_SUCCESS)
        free(green);
    else
        green_add(green);
    return result;
}
