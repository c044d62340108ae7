/* SPDX-License-Identifier: Apache-2.0 */
/* context.c -- registry of contexts; see context.h. context_create.c has the hooks. */
#include "shim/cuda/context/context.h"
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
