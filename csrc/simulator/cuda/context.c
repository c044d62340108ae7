/* SPDX-License-Identifier: Apache-2.0 */
/* context.c -- creates, finds and destroys contexts. Their memory is reused, never freed. */
#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "module.h"

enum { API_VERSION = 3020 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st *contexts;
static struct CUctx_st primaries[CONFIG_DEVICES];

/* --- for the rest of the driver -------------------------------------------------------- */

void context_lock(void)
{
    pthread_mutex_lock(&lock);
}

void context_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Whether the handle is a context, alive or not. Lock held. */
static struct CUctx_st *find(CUcontext handle)
{
    for (int i = 0; i < CONFIG_DEVICES; i++)
        if (handle == &primaries[i])
            return handle->primary ? handle : NULL;
    for (struct CUctx_st *context = contexts; context; context = context->next)
        if (context == handle)
            return context;
    return NULL;
}

struct CUctx_st *context_find_by_id(uint64_t id)
{
    struct CUctx_st *found = NULL;

    context_lock();
    for (int i = 0; i < CONFIG_DEVICES; i++)
        if (id && atomic_load(&primaries[i].alive) == id)
            found = &primaries[i];
    for (struct CUctx_st *context = contexts; context && id; context = context->next)
        if (atomic_load(&context->alive) == id)
            found = context;
    context_unlock();
    return found;
}

struct CUctx_st *context_named(CUcontext handle)
{
    struct CUctx_st *context;

    if (!handle)
        return context_top();
    context_lock();
    context = find(handle);
    context_unlock();
    return context && atomic_load(&context->alive) ? context : NULL;
}

bool context_may_be_current(CUcontext handle)
{
    struct CUctx_st *context;

    context_lock();
    context = find(handle);
    context_unlock();
    return context && (context->primary || atomic_load(&context->alive));
}

struct CUctx_st *context_choose(CUcontext handle)
{
    struct CUctx_st *context = context_named(handle);

    return context ? context->base : NULL;
}

struct CUctx_st *context_green(CUgreenCtx handle)
{
    for (struct CUctx_st *context = contexts; context; context = context->next)
        if (context->green.exists && &context->green == handle)
            return context;
    return NULL;
}

CUgreenCtx context_green_handle(struct CUctx_st *context)
{
    return context && context->green.exists ? &context->green : NULL;
}

struct work_context *context_of(CUcontext handle)
{
    struct CUctx_st *context = handle ? context_choose(handle) : NULL;

    return context ? &context->work : NULL;
}

CUcontext context_handle(struct work_context *work)
{
    return (CUcontext) work; /* its first member */
}

_Static_assert(offsetof(struct CUctx_st, work) == 0, "a context and its work share an address");

struct CUctx_st *context_primary(CUdevice device)
{
    struct CUctx_st *context = &primaries[device];

    context->primary = true;
    context->work.ordinal = device; /* known even while it is not retained */
    return context;
}

const size_t context_limits[CONTEXT_LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

CUresult context_start(struct CUctx_st *context, CUdevice device, unsigned int flags)
{
    CUresult result = process_open_context(device, &context->work);

    if (result != CUDA_SUCCESS)
        return result;
    context->base = context;
    context->references = 1;
    context->flags = flags;
    context->is_graphics = false;
    context->api_version = API_VERSION;
    context->cache = CU_FUNC_CACHE_PREFER_NONE;
    context->shared = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    context->peers = 0;
    for (int i = 0; i < CONTEXT_LIMITS; i++)
        context->limits[i] = context_limits[i];
    atomic_store_explicit(&context->alive, context->work.id, memory_order_release);
    return CUDA_SUCCESS;
}

void context_end(struct CUctx_st *context)
{
    uint64_t id = atomic_exchange(&context->alive, 0);

    /* Its green contexts can no longer be used; their resources are freed when they are destroyed.
     */
    for (struct CUctx_st *green = contexts; green; green = green->next)
        if (green->green.exists && green->base == context)
            atomic_store(&green->alive, 0);
    context->references = 0;
    context_reset_limits(context);
    process_close_context(&context->work);
    module_forget_context(id);
}

void context_release(struct CUctx_st *context)
{
    if (--context->references == 0)
        context_end(context);
}

struct CUctx_st *context_take(void)
{
    struct CUctx_st *context = contexts;

    while (context && (atomic_load(&context->alive) || context->green.exists))
        context = context->next;
    if (!context) {
        context = calloc(1, sizeof(*context));
        if (context) {
            context->next = contexts;
            contexts = context;
        }
    }
    return context;
}

/* --- the API --------------------------------------------------------------------------- */

static CUresult create(CUcontext *handle, unsigned int flags, CUdevice device)
{
    struct CUctx_st *context;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    REQUIRE(handle);
    if (flags & ~(unsigned int) CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    if (process_device(device) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    context_lock();
    context = context_take();
    if (context)
        result = context_start(context, device, flags);
    context_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    if (!context_push(context)) {
        context_lock();
        context_end(context);
        context_unlock();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER();
    return create(context, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER();
    return create(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int count,
                        unsigned int flags, CUdevice device)
{
    ENTER();
    if (affinities || count)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(context, flags, device);
}

/* There is no graphics API here: any Vulkan parameters are accepted. */
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                        CUdevice device)
{
    CUresult result;

    ENTER();
    if (parameters && (parameters->execAffinityParams || parameters->numExecAffinityParams))
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters && parameters->cigParams &&
        (parameters->cigParams->sharedDataType != CIG_DATA_TYPE_NV_BLOB ||
         !parameters->cigParams->sharedData))
        return CUDA_ERROR_NOT_SUPPORTED;
    result = create(context, flags, device);
    if (result == CUDA_SUCCESS && parameters && parameters->cigParams)
        (*context)->is_graphics = true;
    return result;
}

/* Drop one reference; the last one ends the context and pops it from this thread's stack. */
static CUresult destroy(CUcontext handle, bool all)
{
    struct CUctx_st *context;

    context_lock();
    context = find(handle);
    if (!context || context->base != context || context->primary || !atomic_load(&context->alive)) {
        context_unlock();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (all || --context->references == 0) {
        if (context_top() == context)
            context_pop();
        context_end(context);
    }
    context_unlock();
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER();
    return destroy(context, true);
}

CUresult cuCtxDestroy(CUcontext context)
{
    ENTER();
    return destroy(context, true);
}

CUresult cuCtxAttach(CUcontext *handle, unsigned int flags)
{
    struct work_context *work;

    ENTER();
    REQUIRE(handle && !flags);
    work = current_context();
    if (!work || context_handle(work)->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_lock();
    *handle = context_handle(work);
    (*handle)->references++;
    context_unlock();
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context)
{
    ENTER();
    return destroy(context, false);
}
