/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- captures: which streams take part, and behind which nodes each stands. */
#include "cuda/capture.h"

#include <stdlib.h>

#include "cuda/entry.h"
#include "cuda/event.h"
#include "cuda/graph.h"
#include "cuda/tails.h"

struct session {
    uint64_t id;
    struct graph *graph;
    struct stream *origin;
    struct member *members;
    bool is_spoilt;
    bool is_ended;
    bool is_into_given;      /* the graph was there before */
    unsigned int references; /* members, and events that remember it */
};

/* A stream that takes part: what stream->capture points to. */
struct member {
    struct session *session;
    struct stream *stream;
    struct tails tails;
    struct member *next;
};

/* What an event recorded in a capture remembers: what event->capture points to. */
struct remembered {
    struct session *session;
    struct tails tails;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_id;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Lock held, as for all that follows. */
static void let_go(struct session *session)
{
    if (--session->references == 0)
        free(session);
}

static void leave(struct member *member)
{
    struct session *session = member->session;

    for (struct member **link = &session->members; *link; link = &(*link)->next)
        if (*link == member) {
            *link = member->next;
            break;
        }
    member->stream->capture = NULL;
    free(member->tails.nodes);
    free(member);
    let_go(session);
}

static struct member *join(struct session *session, struct stream *stream)
{
    struct member *member = calloc(1, sizeof(*member));

    if (!member)
        return NULL;
    member->session = session;
    member->stream = stream;
    member->next = session->members;
    session->members = member;
    session->references++;
    stream->capture = member;
    return member;
}

CUresult capture_refusal(struct stream *stream)
{
    struct member *member;

    if (!stream->capture)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (member)
        member->session->is_spoilt = true;
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void capture_abandon(struct stream *stream)
{
    struct member *member;

    if (!stream->capture)
        return;
    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (member) {
        member->session->is_spoilt = true;
        leave(member);
    }
    pthread_mutex_unlock(&lock);
}

void capture_forget_event(struct event *event)
{
    struct remembered *remembered = event->capture;

    if (!remembered)
        return;
    pthread_mutex_lock(&lock);
    event->capture = NULL;
    let_go(remembered->session);
    pthread_mutex_unlock(&lock);
    free(remembered->tails.nodes);
    free(remembered);
}

CUresult capture_record_event(struct stream *stream, struct event *event)
{
    struct remembered *remembered = calloc(1, sizeof(*remembered));
    struct member *member;

    if (!remembered)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture_forget_event(event);
    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (!member || !tails_set(&remembered->tails, member->tails.nodes, member->tails.count)) {
        pthread_mutex_unlock(&lock);
        free(remembered);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    remembered->session = member->session;
    member->session->references++;
    event->capture = remembered;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult capture_wait_event(struct stream *stream, struct event *event)
{
    const struct remembered *remembered = event->capture;
    CUresult result = CUDA_SUCCESS;
    struct member *member;

    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (!remembered) { /* a capture cannot depend on what is outside of it */
        member->session->is_spoilt = true;
        result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    } else if (remembered->session->is_ended) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else if (member && member->session != remembered->session) {
        member->session->is_spoilt = remembered->session->is_spoilt = true;
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    } else {
        if (!member)
            member = join(remembered->session, stream);
        if (!member || !tails_join(&member->tails, &remembered->tails))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult capture_add(struct stream *stream, CUgraphNodeType type, node_set *set,
                     const void *argument)
{
    struct member *member;
    struct node *node;
    CUresult result;

    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (!member || member->session->is_spoilt) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    result =
        node_add(member->session->graph, type, member->tails.nodes, member->tails.count, &node);
    if (result == CUDA_SUCCESS && set) {
        result = set(node, argument);
        if (result != CUDA_SUCCESS)
            node_remove(node);
    }
    if (result == CUDA_SUCCESS && !tails_set(&member->tails, (CUgraphNode *) &node, 1))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- begin and end -------------------------------------------------------------------------- */

static CUresult begin(struct stream *stream, CUgraph into, const CUgraphNode *behind, size_t count)
{
    struct session *session;
    struct member *member;

    if (stream == stream->work->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    REQUIRE(!into || graph_find(into));
    session = calloc(1, sizeof(*session));
    if (!session)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    session->id = ++last_id;
    session->graph = into ? graph_find(into) : graph_make();
    session->is_into_given = into;
    session->origin = stream;
    member = session->graph ? join(session, stream) : NULL;
    if (member && count && !tails_set(&member->tails, behind, count)) {
        leave(member);
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    if (!member) {
        free(session);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult begin_mode(struct stream *stream, CUstreamCaptureMode mode)
{
    REQUIRE((unsigned int) mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    return begin(stream, NULL, NULL, 0);
}

static CUresult end(struct stream *stream, CUgraph *graph)
{
    CUresult result = CUDA_SUCCESS;
    struct session *session;
    struct member *own;

    REQUIRE(graph);
    *graph = NULL;
    pthread_mutex_lock(&lock);
    own = stream->capture;
    if (!own) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    session = own->session;
    session->references++;
    if (session->origin != stream)
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (session->is_spoilt)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else
        for (const struct member *member = session->members; member; member = member->next)
            if (!tails_cover(&own->tails, &member->tails))
                result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = (CUgraph) session->graph;
    else if (!session->is_into_given)
        graph_free(session->graph);
    session->is_ended = true;
    while (session->members)
        leave(session->members);
    let_go(session);
    pthread_mutex_unlock(&lock);
    return result;
}

STREAM_CALL(cuStreamBeginCapture, (CUstream hStream), begin(stream, NULL, NULL, 0))
STREAM_CALL(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
            begin_mode(stream, mode))
STREAM_CALL(cuStreamBeginCaptureToGraph,
            (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
             const CUgraphEdgeData *dependencyData __attribute__((unused)), size_t numDependencies,
             CUstreamCaptureMode mode __attribute__((unused))),
            hGraph ? begin(stream, hGraph, dependencies, numDependencies)
                   : CUDA_ERROR_INVALID_VALUE)
STREAM_CALL(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), end(stream, phGraph))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = thread_mode;

    ENTER();
    REQUIRE(mode && (unsigned int) *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* --- what a capture is at ------------------------------------------------------------------- */

static CUresult get_status(struct stream *stream, CUstreamCaptureStatus *status)
{
    const struct member *member;

    REQUIRE(status);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!stream->capture)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (member)
        *status = member->session->is_spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
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
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult update(struct stream *stream, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    const struct tails more = {nodes, count};
    struct member *member;
    bool done;

    REQUIRE(nodes || !count);
    for (size_t i = 0; i < count; i++)
        REQUIRE(node_find(nodes[i]));
    pthread_mutex_lock(&lock);
    member = stream->capture;
    if (!member) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    done = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? tails_set(&member->tails, nodes, count)
                                                       : tails_join(&member->tails, &more);
    pthread_mutex_unlock(&lock);
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
