/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- streams never capture yet: cuStreamBeginCapture is not supported. */
#include "cuda/capture.h"

#include "cuda/entry.h"

CUresult capture_refusal(struct stream *stream)
{
    return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

void capture_abandon(struct stream *stream)
{
    stream->capture = NULL;
}

CUresult capture_record_event(struct stream *stream, struct event *event)
{
    (void) stream;
    (void) event;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_wait_event(struct stream *stream, struct event *event)
{
    (void) stream;
    (void) event;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_add(struct stream *stream, CUgraphNodeType type, const struct work_order *order)
{
    (void) stream;
    (void) type;
    (void) order;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_add_host(struct stream *stream, CUhostFn function, void *data)
{
    (void) stream;
    (void) function;
    (void) data;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult is_capturing(struct stream *stream, CUstreamCaptureStatus *status)
{
    REQUIRE(status);
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

STREAM_CALL(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
            is_capturing(stream, captureStatus))
