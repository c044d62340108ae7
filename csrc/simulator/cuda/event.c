/* SPDX-License-Identifier: Apache-2.0 */
/* event.c -- events: a mark in a stream, and the time at which the device reached it. */
#include "queue.h"

#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/event.h"
#include "memory.h"

enum { EVENT_MAGIC = 0x6576656e };

#define KNOWN_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *unused; /* memory that was an event stays one, so a stale handle is seen */

struct event *event_find(CUevent handle)
{
    struct event *event = (struct event *) handle;

    if (!event || (uintptr_t) handle % sizeof(void *) || event->magic != EVENT_MAGIC)
        return NULL;
    return event;
}

static CUresult make(struct work_context *work, unsigned int flags, CUevent *handle)
{
    struct event *event;
    uint64_t serial;

    pthread_mutex_lock(&lock);
    event = unused;
    if (event)
        unused = event->next;
    else
        event = calloc(1, sizeof(*event));
    pthread_mutex_unlock(&lock);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    serial = event->serial; /* not reset, so that an old record never writes into a new event */
    *event = (struct event) {
        .magic = EVENT_MAGIC,
        .flags = flags,
        .serial = serial + 1,
        .device = work->device,
        .context_id = work->id,
    };
    *handle = (CUevent) event;
    return CUDA_SUCCESS;
}

/* The device has reached the mark: the arguments are the event and the serial of its record. */
static void note_time(struct effect *effect)
{
    const struct law *law = &process.machine->config.law;
    struct event *event = (struct event *) (uintptr_t) effect->arguments[0];

    if (event->serial == effect->arguments[1])
        event->finished = effect->finished - (law->event_ns - law->event_late_ns);
}

/* After kernels an event completes only in its process's turn, if the law says so; it takes no SM.
 */
static bool waits_for_turn(const struct machine_config *config, const struct stream *stream)
{
    return config->law.events_in_turn && !config->free_mode && stream->last_engine == ENGINE_SM;
}

CUresult event_record(struct event *event, struct stream *stream)
{
    const struct machine_config *config = &process.machine->config;
    struct work_order order = {.engine = ENGINE_NONE, .ns = config->law.event_ns};

    if (event->device != stream->device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (waits_for_turn(config, stream)) {
        order.engine = ENGINE_SM;
        order.ns = order.ns ? order.ns : 1;
    }
    event->serial++;
    event->finished = 0;
    event->is_recorded = true;
    event->stream = stream->id;
    capture_forget_event(event);
    order.effect.apply = note_time;
    order.effect.arguments[0] = (uintptr_t) event;
    order.effect.arguments[1] = event->serial;
    return queue_submit(stream, &order, &event->moment);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(phEvent);
    if (Flags & ~(unsigned int) KNOWN_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_EVENT_INTERPROCESS && !(Flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    return make(work, Flags, phEvent);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    struct event *event;

    ENTER();
    event = event_find(hEvent);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_forget_event(event);
    pthread_mutex_lock(&lock);
    event->magic = 0;
    event->serial++;
    event->next = unused;
    unused = event;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

/* Common entry of *name*: find the stream in the current context, and the event. */
static CUresult enter(const char *name, struct process_call *call, CUstream hStream,
                      bool per_thread, struct stream **stream, CUevent handle, struct event **event)
{
    struct work_context *work;
    CUresult result = process_enter(name, call);

    if (result == CUDA_SUCCESS)
        result = process_enter_context(&work);
    if (result == CUDA_SUCCESS)
        result = stream_find(work, hStream, per_thread, stream);
    if (result != CUDA_SUCCESS)
        return result;
    *event = event_find(handle);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(const char *name, CUevent handle, CUstream hStream, bool per_thread)
{
    PROCESS_CALL(this_call);
    struct stream *stream;
    struct event *event;
    CUresult result = enter(name, &this_call, hStream, per_thread, &stream, handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return capture_record_event(stream, event);
    return event_record(event, stream);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return record(__func__, hEvent, hStream, false);
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)
{
    return record(__func__, hEvent, hStream, true);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(__func__, hEvent, hStream, false);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(__func__, hEvent, hStream, true);
}

CUresult cuEventQuery(CUevent hEvent)
{
    const struct event *event;
    CUresult refused;

    ENTER();
    event = event_find(hEvent);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    refused = capture_prohibits();
    if (refused != CUDA_SUCCESS)
        return refused;
    return !event->is_recorded || queue_moment_is_past(&event->moment) ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    struct work_context *work;
    struct event *event;

    ENTER();
    event = event_find(hEvent);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->is_recorded) {
        CUresult result = queue_moment_wait(&event->moment);
        if (result != CUDA_SUCCESS)
            return result;
        pool_trim_all(event->device);
    }
    work = current_context();
    return work ? (CUresult) atomic_load(&work->error) : CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    const struct event *start, *end;

    ENTER();
    REQUIRE(pMilliseconds);
    start = event_find(hStart);
    end = event_find(hEnd);
    if (!start || !end || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING ||
        !start->is_recorded || !end->is_recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!queue_moment_is_past(&start->moment) || !queue_moment_is_past(&end->moment))
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds = (float) ((double) (int64_t) (end->finished - start->finished) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

static CUresult wait_event(const char *name, CUstream hStream, CUevent hEvent, bool per_thread)
{
    PROCESS_CALL(this_call);
    struct stream *stream;
    struct event *event;
    CUresult result = enter(name, &this_call, hStream, per_thread, &stream, hEvent, &event);

    if (result != CUDA_SUCCESS)
        return result;
    if (event->capture || stream->capture)
        return capture_wait_event(stream, event);
    if (!event->is_recorded)
        return CUDA_SUCCESS;
    result = gate_wait(stream, &event->moment);
    if (result == CUDA_SUCCESS)
        stream_note_wait(stream, event->stream, event->moment.ticket);
    return result;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    (void) Flags;
    return wait_event(__func__, hStream, hEvent, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    (void) Flags;
    return wait_event(__func__, hStream, hEvent, true);
}
