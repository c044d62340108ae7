/* SPDX-License-Identifier: Apache-2.0 */
/* captureinfo.c -- queries of a capture's state, and updates of its dependencies. */
#include "cuda/capture_parts.h"
#include "cuda/entry.h"

static CUresult get_status(struct stream *stream, CUstreamCaptureStatus *status)
{
    const struct member *member;

    REQUIRE(status);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!stream->capture && stream != stream->work->legacy)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&capture_lock);
    if (stream == stream->work->legacy && capture_holds_legacy(stream->work)) {
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    member = stream->capture;
    if (member && !member->session->is_graphics)
        *status = member->session->is_spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&capture_lock);
    return CUDA_SUCCESS;
}

static CUresult get_info(struct stream *stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                         CUgraph *graph, const CUgraphNode **behind, const CUgraphEdgeData **edges,
                         size_t *count)
{
    CUresult result = get_status(stream, status);
    const struct member *member;

    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return result;
    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (id)
        *id = member->session->id;
    if (graph)
        *graph = (CUgraph) member->session->graph;
    if (behind)
        *behind = member->tails.nodes;
    if (edges)
        *edges = NULL;
    if (count)
        *count = member->tails.count;
    pthread_mutex_unlock(&capture_lock);
    return CUDA_SUCCESS;
}

static CUresult update(struct stream *stream, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    const struct tails more = {nodes, count};
    struct member *member;
    bool done;

    REQUIRE(nodes || !count);
    for (size_t i = 0; i < count; i++)
        REQUIRE(graph_find_node(nodes[i]));
    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (!member) {
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    done = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? tails_set(&member->tails, nodes, count)
                                                       : tails_join(&member->tails, &more);
    pthread_mutex_unlock(&capture_lock);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

STREAM_CALL(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
            get_status(stream, captureStatus))
STREAM_CALL(cuStreamGetCaptureInfo,
            (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
            get_info(stream, captureStatus_out, id_out, NULL, NULL, NULL, NULL))
STREAM_CALL(cuStreamGetCaptureInfo_v2,
            (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
             CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out),
            get_info(stream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
                     numDependencies_out))
STREAM_CALL(cuStreamGetCaptureInfo_v3,
            (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
             CUgraph *graph_out, const CUgraphNode **dependencies_out,
             const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
            get_info(stream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                     numDependencies_out))
STREAM_CALL(cuStreamUpdateCaptureDependencies,
            (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies,
             unsigned int flags),
            update(stream, dependencies, numDependencies, flags))
STREAM_CALL(cuStreamUpdateCaptureDependencies_v2,
            (CUstream hStream, CUgraphNode *dependencies,
             const CUgraphEdgeData *dependencyData __attribute__((unused)), size_t numDependencies,
             unsigned int flags),
            update(stream, dependencies, numDependencies, flags))
