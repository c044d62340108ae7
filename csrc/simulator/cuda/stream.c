/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c -- stream handles: create, find, destroy, query, wait. */
#include "queue.h"

#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/green.h"
#include "memory.h"

enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5, THREAD_STREAMS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *unused; /* memory that was a stream stays one, so a stale handle is seen */

/* The calling thread's own default streams, by context. */
static __thread struct {
    uint64_t context_id;
    struct stream *stream;
} own[THREAD_STREAMS];

CUresult stream_open(struct work_context *work, unsigned int flags, int priority,
                     struct stream **stream)
{
    struct stream *made;

    pthread_mutex_lock(&lock);
    made = unused;
    if (made)
        unused = made->next;
    else
        made = malloc(sizeof(*made));
    pthread_mutex_unlock(&lock);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (priority < HIGHEST_PRIORITY)
        priority = HIGHEST_PRIORITY;
    *made = (struct stream) {
        .magic = STREAM_MAGIC,
        .most_units = UINT32_MAX,
        .device = work->device,
        .work = work,
        .id = atomic_fetch_add(&process.last_id, 1) + 1,
        .flags = flags,
        .priority = priority > LOWEST_PRIORITY ? LOWEST_PRIORITY : priority,
        .queue = queue_take(work->device, !(flags & CU_STREAM_NON_BLOCKING)),
    };
    pthread_mutex_lock(&lock);
    made->next = work->streams;
    work->streams = made;
    pthread_mutex_unlock(&lock);
    *stream = made;
    return CUDA_SUCCESS;
}

static void recycle(struct stream *stream)
{
    queue_give(stream->device, stream->queue);
    stream->magic = 0;
    stream->next = unused;
    unused = stream;
}

void stream_close(struct stream *stream)
{
    capture_abandon(stream);
    pthread_mutex_lock(&lock);
    for (struct stream **link = &stream->work->streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            recycle(stream);
            break;
        }
    pthread_mutex_unlock(&lock);
}

CUresult stream_open_default(struct work_context *work)
{
    CUresult result = stream_open(work, CU_STREAM_DEFAULT, 0, &work->legacy);

    if (result == CUDA_SUCCESS) {
        queue_give(work->device, work->legacy->queue);
        work->legacy->queue = 0;
        work->legacy->is_default = true;
    }
    return result;
}

void stream_each(struct work_context *work, struct CUctx_st *green, stream_visitor *visit,
                 void *data)
{
    pthread_mutex_lock(&lock);
    for (struct stream *stream = work->streams; stream; stream = stream->next)
        if (!green || stream->green == green)
            visit(stream, data);
    pthread_mutex_unlock(&lock);
}

void stream_close_all(struct work_context *work)
{
    while (work->streams)
        stream_close(work->streams);
    work->legacy = NULL;
}

static CUresult find_own(struct work_context *work, struct stream **stream)
{
    CUresult result;

    for (unsigned int i = 0; i < THREAD_STREAMS; i++)
        if (own[i].context_id == work->id) {
            *stream = own[i].stream;
            return CUDA_SUCCESS;
        }
    result = stream_open(work, CU_STREAM_DEFAULT, 0, stream);
    if (result != CUDA_SUCCESS)
        return result;
    (*stream)->is_default = true;
    for (unsigned int i = THREAD_STREAMS - 1; i > 0; i--)
        own[i] = own[i - 1];
    own[0].context_id = work->id;
    own[0].stream = *stream;
    return CUDA_SUCCESS;
}

CUresult stream_find(struct work_context *work, CUstream handle, bool per_thread,
                     struct stream **stream)
{
    struct stream *found = (struct stream *) handle;

    if (handle == CU_STREAM_PER_THREAD || (!handle && per_thread))
        return find_own(work, stream);
    if (!handle || handle == CU_STREAM_LEGACY) {
        *stream = work->legacy;
        return CUDA_SUCCESS;
    }
    if ((uintptr_t) handle % sizeof(void *))
        return CUDA_ERROR_INVALID_HANDLE;
    *stream = found;
    if (found->magic == STREAM_DETACHED_MAGIC)
        return CUDA_ERROR_STREAM_DETACHED;
    return found->magic == STREAM_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void stream_note_wait(struct stream *stream, uint64_t other, uint64_t ticket)
{
    unsigned int i = stream->next_wait++ % STREAM_WAITS;

    stream->waits[i].stream = other;
    stream->waits[i].ticket = ticket;
}

bool stream_waits_for(const struct stream *stream, uint64_t other, uint64_t ticket)
{
    for (unsigned int i = 0; i < STREAM_WAITS; i++)
        if (stream->waits[i].stream == other && stream->waits[i].ticket >= ticket)
            return true;
    return false;
}

CUresult stream_query(struct stream *stream)
{
    struct moment moment = {stream->device, stream->last};
    bool done = stream == stream->work->legacy ? queue_is_ordered_work_done(stream->device)
                                               : queue_moment_is_past(&moment);
    int error = atomic_load(&stream->work->error);

    if (error)
        return (CUresult) error;
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult stream_synchronize(struct stream *stream)
{
    struct moment moment = {stream->device, stream->last};

    /* The legacy stream waits for all streams that wait for it: only a mark shows when. */
    if (stream == stream->work->legacy && !queue_is_ordered_work_done(stream->device)) {
        struct work_order mark = {.engine = ENGINE_NONE};
        CUresult result = queue_submit(stream, &mark, &moment);
        if (result != CUDA_SUCCESS)
            return result;
    }
    queue_moment_wait(&moment);
    pool_trim_all(stream->device);
    return (CUresult) atomic_load(&stream->work->error);
}

/* --- the API ---------------------------------------------------------------------------------- */

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    struct work_context *work;
    struct stream *stream;
    CUresult result;

    ENTER_CONTEXT(&work);
    REQUIRE(phStream);
    if (flags & ~(unsigned int) CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    result = green_open_stream(context_named(NULL), work, flags, priority, &stream);
    if (result == CUDA_SUCCESS)
        *phStream = (CUstream) stream;
    return result;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int flags)
{
    ENTER();
    return cuStreamCreateWithPriority(phStream, flags, LOWEST_PRIORITY);
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    if (leastPriority)
        *leastPriority = LOWEST_PRIORITY;
    if (greatestPriority)
        *greatestPriority = HIGHEST_PRIORITY;
    return CUDA_SUCCESS;
}

CUresult stream_enter(const char *name, struct process_call *call, CUstream handle, bool per_thread,
                      struct stream **stream)
{
    struct work_context *work;
    CUresult result = process_enter(name, call);

    if (result == CUDA_SUCCESS)
        result = process_enter_context(&work);
    return result == CUDA_SUCCESS ? stream_find(work, handle, per_thread, stream) : result;
}

CUresult stream_enter_again(CUstream handle, bool per_thread, struct stream **stream)
{
    ENTER_STREAM(handle, per_thread, stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    PROCESS_CALL(this_call);
    struct stream *stream = NULL; /* stays so if the error is not the stream's */
    CUresult result = stream_enter(__func__, &this_call, hStream, false, &stream);

    if (!stream || (result != CUDA_SUCCESS && result != CUDA_ERROR_STREAM_DETACHED))
        return result;
    if (stream->is_default)
        return CUDA_ERROR_INVALID_HANDLE;
    stream_close(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

/* The error of a query that the stream does not allow. */
static CUresult asking_refusal(struct stream *stream)
{
    CUresult refused = capture_refusal(stream);

    return refused == CUDA_SUCCESS ? capture_prohibits() : refused;
}

static CUresult query(struct stream *stream)
{
    CUresult refused = asking_refusal(stream);

    return refused == CUDA_SUCCESS ? stream_query(stream) : refused;
}

static CUresult synchronize(struct stream *stream)
{
    CUresult refused = asking_refusal(stream);

    return refused == CUDA_SUCCESS ? stream_synchronize(stream) : refused;
}

static CUresult get_priority(const struct stream *stream, int *priority)
{
    REQUIRE(priority);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

static CUresult get_flags(const struct stream *stream, unsigned int *flags)
{
    REQUIRE(flags);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

static CUresult get_id(const struct stream *stream, unsigned long long *id)
{
    REQUIRE(id);
    *id = stream->id;
    return CUDA_SUCCESS;
}

static CUresult get_device(const struct stream *stream, CUdevice *device)
{
    REQUIRE(device);
    *device = stream->work->ordinal;
    return CUDA_SUCCESS;
}

static CUresult attach(const struct stream *stream, CUdeviceptr address)
{
    struct memory_info info;

    (void) stream;
    if (!memory_find(address, &info) || info.kind != MEMORY_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult attribute(const struct stream *stream, CUstreamAttrID id, CUstreamAttrValue *value)
{
    REQUIRE(value);
    *value = (CUstreamAttrValue) {0};
    if (id == CU_STREAM_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    else if (id == CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY)
        value->syncPolicy = CU_SYNC_POLICY_AUTO;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(struct stream *stream, CUstreamAttrID id,
                              const CUstreamAttrValue *value)
{
    REQUIRE(value);
    if (id == CU_STREAM_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority;
    return CUDA_SUCCESS;
}

STREAM_CALL(cuStreamQuery, (CUstream hStream), query(stream))
STREAM_CALL(cuStreamGetPriority, (CUstream hStream, int *priority), get_priority(stream, priority))
STREAM_CALL(cuStreamGetFlags, (CUstream hStream, unsigned int *flags), get_flags(stream, flags))
STREAM_CALL(cuStreamGetId, (CUstream hStream, unsigned long long *streamId),
            get_id(stream, streamId))
STREAM_CALL(cuStreamGetDevice, (CUstream hStream, CUdevice *device), get_device(stream, device))
STREAM_CALL(cuStreamAttachMemAsync,
            (CUstream hStream, CUdeviceptr dptr, size_t length __attribute__((unused)),
             unsigned int flags __attribute__((unused))),
            attach(stream, dptr))
STREAM_CALL(cuStreamGetAttribute, (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value),
            attribute(stream, attr, value))
STREAM_CALL(cuStreamSetAttribute,
            (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *param),
            set_attribute(stream, attr, param))

static CUresult copy_attributes(struct stream *to, CUstream source, bool per_thread)
{
    struct stream *from;
    CUresult result = stream_enter_again(source, per_thread, &from);

    if (result == CUDA_SUCCESS)
        to->priority = from->priority;
    return result;
}

CUresult cuStreamCopyAttributes(CUstream dstStream, CUstream srcStream)
{
    struct stream *to;

    ENTER_STREAM(dstStream, false, &to);
    return copy_attributes(to, srcStream, false);
}

CUresult cuStreamCopyAttributes_ptsz(CUstream dstStream, CUstream srcStream)
{
    struct stream *to;

    ENTER_STREAM(dstStream, true, &to);
    return copy_attributes(to, srcStream, true);
}

/* The two forms as of STREAM_CALL. */
#define SYNCHRONIZE(name, per_thread)                 \
    CUresult name(CUstream hStream)                   \
    {                                                 \
        struct stream *stream;                        \
                                                      \
        if (process_passes_lock())                    \
            return CUDA_SUCCESS;                      \
        ENTER_STREAM(hStream, (per_thread), &stream); \
        return synchronize(stream);                   \
    }

SYNCHRONIZE(cuStreamSynchronize, false)
SYNCHRONIZE(cuStreamSynchronize_ptsz, true)
