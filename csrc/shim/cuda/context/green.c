/* SPDX-License-Identifier: Apache-2.0 */
/* green.c -- registry of green contexts; see green.h. green_create.c has the hooks. */
#include "shim/cuda/context/green.h"
#include "shim/cuda/context/context.h"
#include "shim/driver.h"
#include "core/mutex.h"

#include <pthread.h>

static struct green *greens;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held over a call */

void green_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    greens = NULL;
}

void green_add(struct green *green)
{
    mutex_lock(&lock, LOCK_GREEN);
    green->next = greens;
    greens = green;
    mutex_unlock(&lock, LOCK_GREEN);
}

struct green *green_take(CUgreenCtx handle)
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
