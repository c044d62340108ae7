/* SPDX-License-Identifier: Apache-2.0 */
/* primary.c -- hooks of primary contexts, of which a device has at most one.
 *
 * The driver counts how often it is retained, and does not say which release is the last: so after
 * each release it is asked whether the context is still active.
 */
#include "shim/cuda/context/primary.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/context/green.h"
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"
#include "core/mutex.h"

#include <pthread.h>
#include <string.h>

/* Serializes retain, release and reset of primary contexts, like the driver: whether a release was
 * the last must not change between the query and the action. No other hook takes it, but it is
 * recursive: the driver notifies profilers of a new context, and these may retain it. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* How often programs retained it at least: the CUDA runtime also retains it in a way of its own. */
static unsigned retained[REGION_DEVICES];

void primary_after_fork(void)
{
    memset(retained, 0, sizeof(retained));
    lock = (pthread_mutex_t) PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

/* The first retain creates the primary context: charge its reserve, like for a created one. */
static CUresult retain_first(CUcontext *context, CUdevice ordinal, unsigned device)
{
    CUresult result = charge_device(device, context_reserve(device));

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

    mutex_lock(&lock, LOCK_PRIMARY);
    if (context_find_primary((unsigned) device))
        result = driver.cuDevicePrimaryCtxRetain(context, ordinal);
    else
        result = retain_first(context, ordinal, (unsigned) device);
    if (result == CUDA_SUCCESS)
        retained[device]++;
    mutex_unlock(&lock, LOCK_PRIMARY);
    return result;
}

/* Forget the primary context if the driver no longer has it active. */
static void forget_inactive_primary(CUdevice ordinal)
{
    int device = shim_device(ordinal);
    struct context *context = device >= 0 ? context_find_primary((unsigned) device) : NULL;
    unsigned int flags;
    int active = 1;

    if (context && driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS &&
        !active)
        context_forget(context, context_life(context));
}

void primary_enter(void)
{
    mutex_lock(&lock, LOCK_PRIMARY);
}

void primary_leave(CUdevice ordinal)
{
    forget_inactive_primary(ordinal);
    mutex_unlock(&lock, LOCK_PRIMARY);
}

/* The handle of an active primary context that no hook saw being retained; NULL: there is none. */
static CUcontext unseen_handle(CUdevice ordinal)
{
    CUcontext handle = NULL;
    unsigned int flags;
    int active = 0;

    if (driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active ||
        driver.cuDevicePrimaryCtxRetain(&handle, ordinal) != CUDA_SUCCESS)
        return NULL;
    driver.cuDevicePrimaryCtxRelease_v2(ordinal);
    return handle;
}

/* The primary context is about to end, and its green contexts with it. Returns it; NULL: none. */
static CUcontext end_work(CUdevice ordinal, unsigned device)
{
    const struct context *primary = context_find_primary(device);
    CUcontext handle = primary ? primary->handle : unseen_handle(ordinal);

    if (primary)
        context_each_part(primary, pace_end_context);
    if (handle)
        pace_end_context(handle);
    return handle;
}

/* *last*: it ends, however often it was retained. */
static CUresult end_primary(CUresult (*ender)(CUdevice), CUdevice ordinal, int last)
{
    int device = shim_device(ordinal);
    CUcontext ended = NULL;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    primary_enter();
    if (device >= 0 && (last || (retained[device] < 2 && !green_exists((unsigned) device))))
        ended = end_work(ordinal, (unsigned) device);
    result = ender(ordinal);
    if (ended && result == CUDA_SUCCESS)
        pace_ended_context(ended);
    if (result == CUDA_SUCCESS && device >= 0)
        retained[device] = last || !retained[device] ? 0 : retained[device] - 1;
    primary_leave(ordinal);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxRelease, ordinal, 0);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxRelease_v2, ordinal, 0);
}

CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxReset, ordinal, 1);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    return end_primary(driver.cuDevicePrimaryCtxReset_v2, ordinal, 1);
}
