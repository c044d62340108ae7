/* SPDX-License-Identifier: Apache-2.0 */
/* deferred_free.c -- frees on streams, settled when their events have completed; see
 * deferred_free.h.
 */
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/physical.h"
#include "shim/cuda/work/stream.h"
#include "shim/driver.h"
#include "core/mutex.h"

#include <pthread.h>
#include <stdlib.h>

struct deferred {
    struct deferred *next;
    struct allocation allocation;
    CUevent event; /* NULL: recording failed, so only the end of a context settles the free */
    const struct context *context; /* of stream and event; NULL: its creation was not seen */
};

int deferred_free_count;

static struct deferred *pending;

/* Never held while waiting for the device. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Record an event after all work of *stream* so far. An event is created in the current context, so
 * the stream's context is made current first; default streams belong to the current one. */
static CUresult record_event(struct deferred *deferred, CUstream stream, event_record *record)
{
    int named = stream_is_object(stream);
    CUcontext context;
    CUresult result =
        named ? driver.cuStreamGetCtx(stream, &context) : driver.cuCtxGetCurrent(&context);

    if (result == CUDA_SUCCESS && named)
        result = driver.cuCtxPushCurrent_v2(context_to_push(context));
    if (result != CUDA_SUCCESS)
        return result;
    deferred->context = context_find(context);
    result = driver.cuEventCreate(&deferred->event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = record(deferred->event, stream);
        if (result != CUDA_SUCCESS)
            driver.cuEventDestroy_v2(deferred->event);
    }
    if (named)
        driver.cuCtxPopCurrent_v2(&context);
    return result;
}

void deferred_free_add(const struct allocation *allocation, CUstream stream, event_record *record)
{
    struct deferred *deferred = malloc(sizeof(*deferred));

    if (!deferred)
        return; /* the charge stays until the process ends */
    deferred->context = NULL;
    if (record_event(deferred, stream, record) != CUDA_SUCCESS)
        deferred->event = NULL;
    deferred->allocation = *allocation;
    mutex_lock(&lock, LOCK_DEFERRED);
    deferred->next = pending;
    pending = deferred;
    __atomic_add_fetch(&deferred_free_count, 1, __ATOMIC_RELEASE);
    mutex_unlock(&lock, LOCK_DEFERRED);
}

/* Remove an entry and refund its memory. The caller holds the lock. */
static void settle(struct deferred **link)
{
    struct deferred *deferred = *link;

    *link = deferred->next;
    __atomic_sub_fetch(&deferred_free_count, 1, __ATOMIC_RELEASE);
    if (deferred->allocation.kind == ALLOCATION_MAPPING)
        physical_drop(physical_of(&deferred->allocation));
    else
        entry_release(&deferred->allocation);
    free(deferred);
}

void deferred_free_context_ended(const struct context *context)
{
    struct deferred **link = &pending;

    mutex_lock(&lock, LOCK_DEFERRED);
    while (*link)
        if ((*link)->allocation.owner == context || (*link)->context == context)
            settle(link);
        else
            link = &(*link)->next;
    mutex_unlock(&lock, LOCK_DEFERRED);
}

void deferred_free_settle_all(void)
{
    /* Otherwise an event query would invalidate a capture of another thread. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct deferred **link = &pending;

    mutex_lock(&lock, LOCK_DEFERRED);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    while (*link) {
        CUevent event = (*link)->event;

        /* A failed context returns its error, and keeps its memory until it is destroyed. */
        if (!event || driver.cuEventQuery(event) != CUDA_SUCCESS) {
            link = &(*link)->next;
            continue;
        }
        settle(link);
        driver.cuEventDestroy_v2(event);
    }
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    mutex_unlock(&lock, LOCK_DEFERRED);
}

void deferred_free_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    pending = NULL;
    deferred_free_count = 0;
}
