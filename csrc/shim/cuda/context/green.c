/* SPDX-License-Identifier: Apache-2.0 */
/* green.c -- hooks of green contexts.
 *
 * A green context is a partition of a device's SMs with queues of its own, for which it takes less
 * memory than a context does: the quota says how much. It retains the primary context of its
 * device, and memory allocated in it belongs to the primary context: it stays there when the green
 * context is destroyed.
 */
#include "shim/cuda/context/green.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/work/pace.h"
#include "shim/cuda/context/primary.h"
#include "shim/driver.h"
#include "core/mutex.h"

#include <pthread.h>
#include <stdlib.h>

struct green {
    struct green *next;
    CUgreenCtx handle;
    unsigned device;
    uint64_t bytes;    /* as charged: the quota may have another figure by now */
    CUcontext context; /* its handle as a CUcontext, for programs and the driver; or NULL */
};

static struct green *greens;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held over a call */

void green_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    greens = NULL;
}

static void add(struct green *green)
{
    mutex_lock(&lock, LOCK_GREEN);
    green->next = greens;
    greens = green;
    mutex_unlock(&lock, LOCK_GREEN);
}

static struct green *take(CUgreenCtx handle)
{
    struct green **link = &greens;
    struct green *green;

    mutex_lock(&lock, LOCK_GREEN);
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    green = *link;
    if (green)
        *link = green->next;
    mutex_unlock(&lock, LOCK_GREEN);
    return green;
}

/* The next green context without a CUcontext handle, after *in_vain* failed ones; NULL: no more. */
static CUgreenCtx unnamed(unsigned in_vain)
{
    CUgreenCtx handle = NULL;

    mutex_lock(&lock, LOCK_GREEN);
    for (const struct green *green = greens; green && !handle; green = green->next)
        if (!green->context && in_vain-- == 0)
            handle = green->handle;
    mutex_unlock(&lock, LOCK_GREEN);
    return handle;
}

/* Set its CUcontext handle, unless it was destroyed meanwhile. */
static void name(CUgreenCtx handle, CUcontext context)
{
    mutex_lock(&lock, LOCK_GREEN);
    for (struct green *green = greens; green; green = green->next)
        if (green->handle == handle && !green->context) {
            green->context = context;
            context_add_part(context, green->device);
        }
    mutex_unlock(&lock, LOCK_GREEN);
}

int green_exists(unsigned device)
{
    const struct green *green;

    mutex_lock(&lock, LOCK_GREEN);
    green = greens;
    while (green && green->device != device)
        green = green->next;
    mutex_unlock(&lock, LOCK_GREEN);
    return green != NULL;
}

int green_name(void)
{
    unsigned in_vain = 0;
    int named = 0;
    CUgreenCtx handle;
    CUcontext context;

    while ((handle = unnamed(in_vain))) {
        if (driver.cuCtxFromGreenCtx(&context, handle) != CUDA_SUCCESS) {
            in_vain++;
            continue;
        }
        name(handle, context);
        named = 1;
    }
    return named;
}

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
    add(green);
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
    green = take(handle); /* before the driver can reuse its handle */
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
        add(green);
    return result;
}
