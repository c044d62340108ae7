/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- hooks of stream captures: recorded work takes no device time, so it is not charged.
 *
 * Other streams join a capture by waiting for its events, so the driver is asked whether a stream
 * captures; but only while there are captures at all. The driver may not count captures into the
 * commands of a graphics API (CIG), and no stream joins them: those streams are remembered here.
 */
#include "shim/cuda/work/capture.h"
#include "shim/cuda/work/flight.h"
#include "shim/cuda/work/mark.h"
#include "shim/shim.h"
#include "core/lock.h"

#include <string.h>

enum { GRAPHICS = 64 }; /* most CIG captures at a time; work recorded in further ones is charged */

int captures;

static struct graphics {
    uintptr_t stream; /* its name; 0: none */
    CUcontext context;
} graphics[GRAPHICS];

static int graphics_lock;

static int is_capturing(const struct stream *stream, CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    *result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &status);
    return *result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static struct graphics *find_graphics(uintptr_t stream)
{
    for (unsigned i = 0; i < GRAPHICS; i++)
        if (__atomic_load_n(&graphics[i].stream, __ATOMIC_ACQUIRE) == stream)
            return &graphics[i];
    return NULL;
}

int capture_has(const struct stream *stream)
{
    CUresult result;

    return find_graphics(flight_name(stream)) || is_capturing(stream, &result) ||
           result != CUDA_SUCCESS;
}

/* Setting a mark checks the count: once the count was raised, and marks that were being set are
 * done, none gets into the capture. */
static CUresult begin(void)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    marks_stop();
    marks_leave();
    return CUDA_SUCCESS;
}

static CUresult begun(CUresult result)
{
    if (result != CUDA_SUCCESS)
        __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

#define BEGIN(symbol, ...)                                                          \
    do {                                                                            \
        CUresult result = begin();                                                  \
                                                                                    \
        return result == CUDA_SUCCESS ? begun(driver.symbol(__VA_ARGS__)) : result; \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(cuStreamBeginCapture, stream);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(cuStreamBeginCapture_ptsz, stream);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2, stream, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2_ptsz, stream, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t count, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, edges, count, mode);
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
    if (was_capturing && !is_capturing(&stream, &asked) && asked == CUDA_SUCCESS)
        __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
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
    BEGIN(cuStreamBeginRecaptureToGraph, stream, mode, graph, callback, data);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                            CUgraph graph, CUgraphRecaptureCallback callback,
                                            void *data)
{
    BEGIN(cuStreamBeginRecaptureToGraph_ptsz, stream, mode, graph, callback, data);
}

/* --- into the commands of a graphics API ------------------------------------------------------ */

static void remember_graphics(const struct stream *stream)
{
    struct graphics *place;
    CUcontext context = NULL;

    driver.cuCtxGetCurrent(&context);
    spin_lock(&graphics_lock, LOCK_GRAPHICS);
    place = find_graphics(0);
    if (place) {
        place->context = context;
        __atomic_store_n(&place->stream, flight_name(stream), __ATOMIC_RELEASE);
    }
    spin_unlock(&graphics_lock, LOCK_GRAPHICS);
    if (!place)
        __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
}

static void forget_graphics(struct graphics *place)
{
    if (!__atomic_exchange_n(&place->stream, 0, __ATOMIC_SEQ_CST))
        return;
    __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
}

static CUresult begin_graphics(struct stream stream, CUstreamCigCaptureParams *params)
{
    CUresult result = begin();

    if (result != CUDA_SUCCESS)
        return result;
    result = begun(STREAM_CALL(&stream, cuStreamBeginCaptureToCig)(stream.handle, params));
    if (result == CUDA_SUCCESS)
        remember_graphics(&stream);
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
    struct graphics *place = find_graphics(flight_name(&stream));
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = STREAM_CALL(&stream, cuStreamEndCaptureToCig)(stream.handle);
    if (result == CUDA_SUCCESS && place)
        forget_graphics(place);
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

void capture_end_stream(CUstream stream)
{
    struct graphics *place = capture_is_going_on() ? find_graphics((uintptr_t) stream) : NULL;

    if (stream && place)
        forget_graphics(place);
}

void capture_end_context(CUcontext context)
{
    for (unsigned i = 0; i < GRAPHICS && capture_is_going_on(); i++)
        if (!context || graphics[i].context == context)
            forget_graphics(&graphics[i]);
}

void capture_after_fork(void)
{
    captures = 0;
    memset(graphics, 0, sizeof(graphics));
    graphics_lock = 0;
}
