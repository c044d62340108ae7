/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- hooks of stream captures: what is only recorded takes no time of the device.
 *
 * Other streams join a capture by waiting for its events, so a stream is asked whether it captures;
 * but only while there are captures at all.
 */
#include "cuda/capture.h"
#include "cuda/mark.h"
#include "shim.h"

int captures;

static int is_capturing(const struct stream *stream, CUresult *result)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    *result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &status);
    return *result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int capture_has(const struct stream *stream)
{
    CUresult result;

    return is_capturing(stream, &result) || result != CUDA_SUCCESS;
}

/* Marks look at the count when they are set: once it was raised, and those are done that were on
 * their way, none gets into the capture. */
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

/* An end that is refused is one, too, if the capture was broken; not if it was another's. */
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

void capture_after_fork(void)
{
    captures = 0;
}
