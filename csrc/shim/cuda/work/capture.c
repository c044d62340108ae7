/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- hooks of stream captures: recorded work takes no device time, so it is not charged.
 *
 * Other streams join a capture by waiting for its events, so the driver is asked whether a stream
 * captures; but only while there are captures at all. The driver may not count captures into the
 * commands of a graphics API (CIG), and no stream joins them: those streams are remembered here.
 */
#include "shim/cuda/work/capture.h"
#include "shim/cuda/work/mark.h"
#include "shim/shim.h"
#include "core/spin.h"

#include <string.h>

/* Most captures at a time that are registered. Work recorded in further CIG captures is charged,
 * and other further ones count for ever if their stream is destroyed before their end. */
enum { ORIGINS = 64 };

int captures;

/* Streams in which captures were begun. */
static struct origin {
    uintptr_t stream; /* its name; 0: none */
    CUcontext context;
    int is_graphics;
    int is_unnamed; /* it is the default stream of a thread, which other threads cannot name */
} origins[ORIGINS];

static int origins_lock;

static int is_capturing(const struct stream *stream, CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    *result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &status);
    return *result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static struct origin *find_origin(uintptr_t stream, int is_graphics)
{
    for (unsigned i = 0; i < ORIGINS; i++)
        if (__atomic_load_n(&origins[i].stream, __ATOMIC_ACQUIRE) == stream &&
            (!stream || origins[i].is_graphics == is_graphics))
            return &origins[i];
    return NULL;
}

int capture_records(const struct stream *stream)
{
    CUresult result;

    return find_origin(stream_name(stream), 1) || is_capturing(stream, &result);
}

int capture_forbids(const struct stream *stream)
{
    CUresult result;

    return find_origin(stream_name(stream), 1) || is_capturing(stream, &result) ||
           result != CUDA_SUCCESS;
}

/* The context of *stream*; NULL: unknown. */
static CUcontext context_of(const struct stream *stream)
{
    CUcontext context = NULL;

    if (stream_is_object(stream->handle)) {
        if (driver.cuStreamGetCtx(stream->handle, &context) != CUDA_SUCCESS)
            context = NULL;
    } else {
        driver.cuCtxGetCurrent(&context);
    }
    return context;
}

/* 0: there is no room for it. */
static int remember(const struct stream *stream, int is_graphics)
{
    CUcontext context = context_of(stream);
    struct origin *place;

    spin_lock(&origins_lock, LOCK_ORIGINS);
    place = find_origin(stream_name(stream), is_graphics); /* left by an earlier capture */
    if (!place)
        place = find_origin(0, 0);
    if (place) {
        place->context = context;
        place->is_graphics = is_graphics;
        place->is_unnamed = !stream_is_object(stream->handle);
        __atomic_store_n(&place->stream, stream_name(stream), __ATOMIC_RELEASE);
    }
    spin_unlock(&origins_lock, LOCK_ORIGINS);
    return place != NULL;
}

/* 0: another thread has done so. */
static int forget(struct origin *place)
{
    return __atomic_exchange_n(&place->stream, 0, __ATOMIC_SEQ_CST) != 0;
}

static void count_down(void)
{
    int count = __atomic_load_n(&captures, __ATOMIC_RELAXED);

    while (count > 0 && !__atomic_compare_exchange_n(&captures, &count, count - 1, 0,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        ;
}

/* Setting a mark checks the count: once the count was raised, and marks that were being set are
 * done, none gets into the capture. */
static CUresult begin(struct stream stream)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    if (mark_stop_or_visit(stream_name(&stream)))
        mark_leave();
    else
        mark_end_visit();
    return CUDA_SUCCESS;
}

static CUresult begun(CUresult result, struct stream stream)
{
    if (result == CUDA_SUCCESS)
        remember(&stream, 0);
    else
        count_down();
    return result;
}

/* *form* makes a struct stream of the hook's `stream`. */
#define BEGIN(form, symbol, ...)                                                                  \
    do {                                                                                          \
        CUresult result = begin(form(stream));                                                    \
                                                                                                  \
        return result == CUDA_SUCCESS ? begun(driver.symbol(__VA_ARGS__), form(stream)) : result; \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(STREAM_LEGACY, cuStreamBeginCapture, stream);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(STREAM_PER_THREAD, cuStreamBeginCapture_ptsz, stream);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(STREAM_LEGACY, cuStreamBeginCapture_v2, stream, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(STREAM_PER_THREAD, cuStreamBeginCapture_v2_ptsz, stream, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t count, CUstreamCaptureMode mode)
{
    BEGIN(STREAM_LEGACY, cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count,
          mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
    BEGIN(STREAM_PER_THREAD, cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, edges,
          count, mode);
}

/* A refused end counts, too, if the capture was invalidated; not if another thread began it. */
static CUresult end(struct stream stream, CUgraph *graph)
{
    CUresult result, asked;
    int was_capturing;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    was_capturing = is_capturing(&stream, &asked);
    result = STREAM_CALL(&stream, cuStreamEndCapture)(stream.handle, graph);
    if (was_capturing && !is_capturing(&stream, &asked) && asked == CUDA_SUCCESS) {
        struct origin *place = find_origin(stream_name(&stream), 0);

        if (place)
            forget(place);
        count_down();
    }
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end((struct stream) {stream, 0}, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end((struct stream) {stream, 1}, graph);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                       CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(STREAM_LEGACY, cuStreamBeginRecaptureToGraph, stream, mode, graph, callback, data);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                            CUgraph graph, CUgraphRecaptureCallback callback,
                                            void *data)
{
    BEGIN(STREAM_PER_THREAD, cuStreamBeginRecaptureToGraph_ptsz, stream, mode, graph, callback,
          data);
}

/* --- into the commands of a graphics API ------------------------------------------------------ */

static CUresult begin_graphics(struct stream stream, CUstreamCigCaptureParams *params)
{
    CUresult result = begin(stream);

    if (result != CUDA_SUCCESS)
        return result;
    result = STREAM_CALL(&stream, cuStreamBeginCaptureToCig)(stream.handle, params);
    if (result != CUDA_SUCCESS || !remember(&stream, 1))
        count_down();
    return result;
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *params)
{
    return begin_graphics(STREAM_LEGACY(stream), params);
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams *params)
{
    return begin_graphics(STREAM_PER_THREAD(stream), params);
}

static CUresult end_graphics(struct stream stream)
{
    struct origin *place = find_origin(stream_name(&stream), 1);
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = STREAM_CALL(&stream, cuStreamEndCaptureToCig)(stream.handle);
    if (result == CUDA_SUCCESS && place && forget(place))
        count_down();
    return result;
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    return end_graphics(STREAM_LEGACY(stream));
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    return end_graphics(STREAM_PER_THREAD(stream));
}

/* The capture that was begun in the stream, or thread's default stream, of *place* ends with it. An
 * origin outlives its capture if that was ended through another of its streams. */
static void end_with(struct origin *place)
{
    struct stream stream = STREAM_LEGACY((CUstream) place->stream);
    CUresult result;
    int ends = place->is_graphics || place->is_unnamed || is_capturing(&stream, &result);

    if (forget(place) && ends)
        count_down();
}

void capture_end_stream(CUstream stream)
{
    struct origin *place;

    if (!stream || !capture_is_going_on())
        return;
    for (int is_graphics = 0; is_graphics < 2; is_graphics++) {
        place = find_origin((uintptr_t) stream, is_graphics);
        if (place)
            end_with(place);
    }
}

void capture_end_context(CUcontext context)
{
    for (unsigned i = 0; i < ORIGINS && capture_is_going_on(); i++)
        if (__atomic_load_n(&origins[i].stream, __ATOMIC_ACQUIRE) &&
            (!context || origins[i].context == context))
            end_with(&origins[i]);
}

void capture_after_fork(void)
{
    captures = 0;
    memset(origins, 0, sizeof(origins));
    origins_lock = 0;
}
