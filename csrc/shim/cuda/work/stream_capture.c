/* SPDX-License-Identifier: Apache-2.0 */
/* stream_capture.c -- hooks of stream captures: recorded work takes no device time, so it is not
 * charged. */
#include "shim/cuda/work/capture.h"
#include "shim/cuda/work/mark.h"
#include "shim/shim.h"

/* Setting a mark checks the count: once the count was raised, and marks that were being set are
 * done, none gets into the capture. */
static CUresult begin(struct stream stream)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    capture_count_up();
    if (mark_stop_or_visit(stream_name(&stream)))
        mark_leave();
    else
        mark_end_visit();
    return CUDA_SUCCESS;
}

static CUresult begun(CUresult result, struct stream stream)
{
    if (result == CUDA_SUCCESS)
        capture_register(&stream, 0);
    else
        capture_count_down();
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
    was_capturing = capture_has(&stream, &asked);
    result = STREAM_CALL(&stream, cuStreamEndCapture)(stream.handle, graph);
    if (was_capturing && !capture_has(&stream, &asked) && asked == CUDA_SUCCESS) {
        struct capture *capture = capture_find(stream_name(&stream), 0);

        if (capture)
            capture_unregister(capture);
        capture_count_down();
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
    if (result != CUDA_SUCCESS || !capture_register(&stream, 1))
        capture_count_down();
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
    struct capture *capture = capture_find(stream_name(&stream), 1);
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = STREAM_CALL(&stream, cuStreamEndCaptureToCig)(stream.handle);
    if (result == CUDA_SUCCESS && capture && capture_unregister(capture))
        capture_count_down();
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
