/* SPDX-License-Identifier: Apache-2.0 */
/* current.c -- each thread's stack of contexts; the one on top is current.
 *
 * A thread keeps the id of the context that it pushed: so it detects that another thread ended the
 * context, even if its memory was reused.
 */
#include <stdlib.h>

#include "context.h"

enum { FIRST_DEPTH = 8 };

struct entry {
    struct CUctx_st *context;
    uint64_t id; /* ignored for a primary context, which may end and restart under a thread */
};

struct stack {
    struct entry *entries;
    size_t depth;
    size_t capacity;
};

static __thread struct stack stack;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

/* --- the thread's stack ---------------------------------------------------------------- */

/* A green context can be current to one thread only. CUDA's documentation says no more than that;
 * here the call of a second thread fails. */
static bool hold_green(struct CUctx_st *context)
{
    const void *none = NULL;

    if (!context->green.exists)
        return true;
    if (atomic_load(&context->green.thread) != &stack &&
        !atomic_compare_exchange_strong(&context->green.thread, &none, &stack))
        return false;
    context->green.times++;
    return true;
}

static void let_go_green(const struct entry *entry)
{
    struct CUctx_st *context = entry->context;

    if (context->green.exists && atomic_load(&context->alive) == entry->id &&
        --context->green.times == 0)
        atomic_store(&context->green.thread, NULL);
}

static void forget_stack(void *entries)
{
    while (stack.depth)
        let_go_green(&stack.entries[--stack.depth]);
    free(entries);
    stack = (struct stack) {0}; /* later destructors of the ending thread find no context */
}

static void make_key(void)
{
    pthread_key_create(&key, forget_stack);
}

/* Prepare the context for this thread's stack; false if it may not be current here. */
static bool take(struct CUctx_st *context)
{
    return context_may_be_current(context) && hold_green(context);
}

bool context_push(struct CUctx_st *context)
{
    struct entry entry = {context, atomic_load(&context->alive)};

    if (stack.depth == stack.capacity) {
        size_t capacity = stack.capacity ? 2 * stack.capacity : FIRST_DEPTH;
        struct entry *entries = realloc(stack.entries, capacity * sizeof(*entries));

        if (!entries) {
            let_go_green(&entry);
            return false;
        }
        stack.entries = entries;
        stack.capacity = capacity;
        pthread_once(&key_once, make_key);
        pthread_setspecific(key, entries);
    }
    stack.entries[stack.depth++] = entry;
    return true;
}

static struct entry *top(void)
{
    return stack.depth ? &stack.entries[stack.depth - 1] : NULL;
}

static bool entry_is_alive(const struct entry *entry)
{
    uint64_t alive = atomic_load_explicit(&entry->context->alive, memory_order_acquire);

    return alive && (entry->context->primary || alive == entry->id);
}

struct CUctx_st *context_top(void)
{
    struct entry *entry = top();

    return entry && entry_is_alive(entry) ? entry->context : NULL;
}

void context_pop(void)
{
    let_go_green(&stack.entries[--stack.depth]);
}

struct work_context *current_context(void)
{
    struct entry *entry = top();

    return entry && entry_is_alive(entry) ? &entry->context->base->work : NULL;
}

/* --- the API --------------------------------------------------------------------------- */

static CUresult push_current(CUcontext context)
{
    if (!context || !take(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER();
    return push_current(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    ENTER();
    return push_current(context);
}

static CUresult pop_current(CUcontext *context)
{
    if (!top())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = top()->context;
    context_pop();
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER();
    return pop_current(context);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    ENTER();
    return pop_current(context);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    if (context && !take(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (top())
        context_pop();
    if (context && !context_push(context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    REQUIRE(context);
    *context = top() ? top()->context : NULL;
    return CUDA_SUCCESS;
}

/* The device of a primary context is known even while it is not retained. */
static CUresult get_device(CUdevice *device, CUcontext handle)
{
    struct CUctx_st *context = handle ? handle : top() ? top()->context : NULL;

    REQUIRE(device);
    if (!context || !context_may_be_current(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->work.ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER();
    return get_device(device, NULL);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    ENTER();
    return get_device(device, context);
}

static CUresult synchronize(CUcontext handle)
{
    struct work_context *work;
    struct CUctx_st *context = context_choose(handle);
    CUresult result;

    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!handle) {
        result = process_enter_context(&work);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return process_synchronize_context(&context->work);
}

CUresult cuCtxSynchronize(void)
{
    if (process_passes_lock())
        return CUDA_SUCCESS;
    ENTER();
    return synchronize(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    if (process_passes_lock())
        return CUDA_SUCCESS;
    ENTER();
    return synchronize(context);
}
