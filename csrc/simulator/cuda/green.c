/* SPDX-License-Identifier: Apache-2.0 */
/* green.c -- green contexts: creation, destruction, streams, events.
 *
 * A green context charges as much memory as the machine's law says and retains the primary context
 * of its device. Its work and allocations belong to that one. Its streams exist until the program
 * destroys them, but accept no work once the context is gone.
 */
#include "cuda/green.h"

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/event.h"

CUresult green_open_stream(struct CUctx_st *context, struct work_context *work, unsigned int flags,
                           int priority, struct stream **stream)
{
    CUgreenCtx green = context_green_handle(context);
    CUresult result = stream_open(work, flags, priority, stream);
    struct moment waited;

    if (result != CUDA_SUCCESS || !green)
        return result;
    (*stream)->green = context;
    (*stream)->most_units = green->processors.count;
    waited = (struct moment) {work->device, green->mark->last};
    return gate_wait(*stream, &waited);
}

/* --- creation and destruction ----------------------------------------------------------------- */

static uint64_t bytes_of(CUdevice ordinal)
{
    return process_device_config(ordinal)->context_bytes *
           process.machine->config.law.green_context_percent / 100;
}

/* Retain the primary context; lock held. */
static CUresult retain(CUdevice ordinal, struct CUctx_st **primary)
{
    *primary = context_primary(ordinal);
    if (!atomic_load(&(*primary)->alive))
        return context_start(*primary, ordinal, 0);
    (*primary)->references++;
    return CUDA_SUCCESS;
}

/* Lock held; the primary context is retained. */
static CUresult start(struct CUctx_st *context, struct CUctx_st *primary,
                      const struct processors *processors)
{
    struct work_context *work = &context->work;
    CUresult result;

    if (!machine_charge(process.machine, primary->work.device, process.slot,
                        bytes_of(processors->ordinal)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = stream_open(&primary->work, CU_STREAM_NON_BLOCKING, 0, &context->green.mark);
    if (result != CUDA_SUCCESS) {
        machine_discharge(process.machine, primary->work.device, process.slot,
                          bytes_of(processors->ordinal));
        return result;
    }
    work->id = atomic_fetch_add(&process.last_id, 1) + 1;
    work->ordinal = processors->ordinal;
    work->device = primary->work.device;
    context->base = primary;
    context->green.exists = true;
    context->green.times = 0;
    atomic_store(&context->green.thread, NULL);
    context->green.processors = *processors;
    context->green.primary_id = primary->work.id;
    context->green.mark->is_default = true;
    atomic_store_explicit(&context->alive, work->id, memory_order_release);
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags)
{
    struct CUctx_st *primary, *context;
    struct processors processors;
    CUresult result;

    ENTER();
    REQUIRE(phCtx && desc);
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned int) CU_GREEN_CTX_DEFAULT_STREAM || !resource_of(desc, &processors) ||
        processors.ordinal != dev)
        return CUDA_ERROR_INVALID_VALUE;
    context_lock();
    result = retain(dev, &primary);
    if (result == CUDA_SUCCESS) {
        context = context_take();
        result = context ? start(context, primary, &processors) : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            *phCtx = &context->green;
        else
            context_release(primary);
    }
    context_unlock();
    return result;
}

static void detach(struct stream *stream, void *data)
{
    (void) data;
    capture_abandon(stream);
    stream->green = NULL;
    stream->magic = STREAM_DETACHED_MAGIC;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    struct CUctx_st *context;

    ENTER();
    context_lock();
    context = context_green(hCtx);
    if (!context) {
        context_unlock();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    atomic_store(&context->alive, 0);
    context->green.exists = false;
    machine_discharge(process.machine, context->work.device, process.slot,
                      bytes_of(context->work.ordinal));
    /* If the primary context was reset, the streams and the reference went with it. */
    if (atomic_load(&context->base->alive) == context->green.primary_id) {
        stream_each(&context->base->work, context, detach, NULL);
        stream_close(context->green.mark);
        context_release(context->base);
    }
    context_unlock();
    return CUDA_SUCCESS;
}

/* The green context of a handle; NULL if it is none or its primary context is gone. */
static struct CUctx_st *find(CUgreenCtx handle)
{
    struct CUctx_st *context;

    context_lock();
    context = context_green(handle);
    context_unlock();
    return context && atomic_load(&context->alive) ? context : NULL;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    ENTER();
    REQUIRE(pContext);
    *pContext = find(hCtx);
    return *pContext ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

#if CUDA_VERSION >= 13000

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    struct CUctx_st *context;

    ENTER();
    REQUIRE(greenCtxId);
    context = find(greenCtx ? greenCtx : context_green_handle(context_named(NULL)));
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *greenCtxId = context->work.id;
    return CUDA_SUCCESS;
}

#endif

/* --- resources ----------------------------------------------------------------------------------
 */

static CUresult describe(struct CUctx_st *context, CUdevResourceType type, CUdevResource *resource)
{
    struct processors all;

    REQUIRE(resource);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    all = context_green_handle(context) ? context->green.processors
                                        : resource_whole(context->work.ordinal);
    return resource_describe(&all, type, resource);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type)
{
    ENTER();
    return describe(find(hCtx), type, resource);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
    ENTER();
    return describe(context_named(hCtx), type, resource);
}

/* --- streams --------------------------------------------------------------------------------- */

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority)
{
    struct CUctx_st *context;
    struct stream *stream;
    CUresult result;

    ENTER();
    REQUIRE(phStream && flags == CU_STREAM_NON_BLOCKING);
    context = find(greenCtx);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = green_open_stream(context, &context->base->work, flags, priority, &stream);
    if (result == CUDA_SUCCESS)
        *phStream = (CUstream) stream;
    return result;
}

/* The context of a stream; for the default streams the calling thread's. */
static struct CUctx_st *context_of_stream(const struct stream *stream)
{
    if (stream->is_default)
        return context_named(NULL);
    return stream->green ? stream->green : context_handle(stream->work);
}

static CUresult get_context(const struct stream *stream, CUcontext *context)
{
    REQUIRE(context);
    *context = context_of_stream(stream);
    return CUDA_SUCCESS;
}

static CUresult get_green(const struct stream *stream, CUgreenCtx *green)
{
    REQUIRE(green);
    *green = context_green_handle(context_of_stream(stream));
    return CUDA_SUCCESS;
}

static CUresult get_both(const struct stream *stream, CUcontext *context, CUgreenCtx *green)
{
    REQUIRE(context && green);
    *context = context_of_stream(stream)->base;
    return get_green(stream, green);
}

STREAM_CALL(cuStreamGetCtx, (CUstream hStream, CUcontext *pctx), get_context(stream, pctx))
STREAM_CALL(cuStreamGetCtx_v2, (CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx),
            get_both(stream, pCtx, pGreenCtx))

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
    struct stream *stream;

    ENTER_STREAM(hStream, false, &stream);
    return get_green(stream, phCtx);
}

#if CUDA_VERSION >= 13000

STREAM_CALL(cuStreamGetDevResource,
            (CUstream hStream, CUdevResource *resource, CUdevResourceType type),
            describe(context_of_stream(stream), type, resource))

#endif

/* --- events: of all streams at once ---------------------------------------------------------- */

struct gathering {
    CUresult result;
    struct stream *mark;         /* waits for each stream */
    const struct moment *moment; /* each stream waits for it */
};

static void gather(struct stream *stream, void *data)
{
    struct gathering *gathering = data;
    CUresult result = capture_refusal(stream);
    struct moment last = {stream->device, stream->last};

    if (result == CUDA_SUCCESS && gathering->moment)
        result = gate_wait(stream, gathering->moment);
    else if (result == CUDA_SUCCESS)
        result = gate_wait(gathering->mark, &last);
    if (result != CUDA_SUCCESS)
        gathering->result = result;
}

static CUresult find_with_event(CUgreenCtx handle, CUevent event_handle, struct CUctx_st **context,
                                struct event **event)
{
    *context = find(handle);
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = event_find(event_handle);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    struct gathering gathering = {.result = CUDA_SUCCESS};
    struct CUctx_st *context;
    struct event *event;
    CUresult result;

    ENTER();
    result = find_with_event(hCtx, hEvent, &context, &event);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->context_id != context->base->work.id)
        return CUDA_ERROR_INVALID_HANDLE;
    gathering.result =
        stream_open(&context->base->work, CU_STREAM_NON_BLOCKING, 0, &gathering.mark);
    if (gathering.result != CUDA_SUCCESS)
        return gathering.result;
    stream_each(&context->base->work, context, gather, &gathering);
    if (gathering.result == CUDA_SUCCESS)
        gathering.result = event_record(event, gathering.mark);
    stream_close(gathering.mark);
    return gathering.result;
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    struct gathering gathering = {.result = CUDA_SUCCESS};
    struct CUctx_st *context;
    struct event *event;
    CUresult result;

    ENTER();
    result = find_with_event(hCtx, hEvent, &context, &event);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event->is_recorded)
        return CUDA_SUCCESS;
    gathering.moment = &event->moment;
    gathering.result = gate_wait(context->green.mark, &event->moment); /* for later streams */
    stream_each(&context->base->work, context, gather, &gathering);
    return gathering.result;
}
