/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c -- stream capture: the participating streams, and the last nodes of each. */
#include "cuda/capture_parts.h"

#include <stdlib.h>

#include "cuda/context.h"
#include "cuda/entry.h"
#include "cuda/event.h"

/* State of an event that was recorded in a capture (event->capture). */
struct remembered {
    struct session *session;
    struct tails tails;
};

pthread_mutex_t capture_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static uint64_t last_id;
static struct session *sessions;     /* those that have not ended */
static _Atomic unsigned int ongoing; /* their number */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Lock held, as for all that follows. */
static void forget(const struct session *session)
{
    for (struct session **link = &sessions; *link; link = &(*link)->next)
        if (*link == session) {
            *link = session->next;
            atomic_fetch_sub(&ongoing, 1);
            return;
        }
}

static void let_go(struct session *session)
{
    if (--session->references)
        return;
    forget(session);
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

static bool is_prohibiting(const struct session *session)
{
    if (session->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return session->thread == &thread_mode || (session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                               thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_prohibits(void)
{
    CUresult result = CUDA_SUCCESS;

    if (!atomic_load_explicit(&ongoing, memory_order_acquire) ||
        thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    pthread_mutex_lock(&capture_lock);
    for (struct session *session = sessions; session; session = session->next)
        if (is_prohibiting(session)) {
            session->is_spoilt = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&capture_lock);
    return result;
}

bool capture_holds_legacy(const struct work_context *work)
{
    for (const struct session *session = sessions; session; session = session->next)
        for (const struct member *member = session->members; member; member = member->next)
            if (member->stream->work == work && !(member->stream->flags & CU_STREAM_NON_BLOCKING))
                return true;
    return false;
}

CUresult capture_refusal(struct stream *stream)
{
    struct member *member;

    if (!stream->capture)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (member)
        member->session->is_spoilt = true;
    pthread_mutex_unlock(&capture_lock);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void capture_abandon(struct stream *stream)
{
    struct member *member;

    if (!stream->capture)
        return;
    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (member) {
        member->session->is_spoilt = true;
        leave(member);
    }
    pthread_mutex_unlock(&capture_lock);
}

void capture_forget_event(struct event *event)
{
    struct remembered *remembered = event->capture;

    if (!remembered)
        return;
    pthread_mutex_lock(&capture_lock);
    event->capture = NULL;
    let_go(remembered->session);
    pthread_mutex_unlock(&capture_lock);
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
    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (!member || !tails_set(&remembered->tails, member->tails.nodes, member->tails.count)) {
        pthread_mutex_unlock(&capture_lock);
        free(remembered);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    remembered->session = member->session;
    member->session->references++;
    event->capture = remembered;
    pthread_mutex_unlock(&capture_lock);
    return CUDA_SUCCESS;
}

CUresult capture_wait_event(struct stream *stream, struct event *event)
{
    const struct remembered *remembered = event->capture;
    CUresult result = CUDA_SUCCESS;
    struct member *member;

    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (!remembered) { /* a capture cannot depend on work outside of it */
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
    pthread_mutex_unlock(&capture_lock);
    return result;
}

static CUresult add(const struct member *member, CUgraphNodeType type, graph_node_set *set,
                    const void *argument, struct node **node)
{
    CUresult result = graph_add_node(member->session->graph, type, member->tails.nodes,
                                     member->tails.count, node);

    if (result == CUDA_SUCCESS && set) {
        result = set(*node, argument);
        if (result != CUDA_SUCCESS)
            graph_remove_node(*node);
    }
    return result;
}

CUresult capture_add(struct stream *stream, CUgraphNodeType type, graph_node_set *set,
                     const void *argument)
{
    struct member *member;
    struct node *node;
    CUresult result;

    pthread_mutex_lock(&capture_lock);
    member = stream->capture;
    if (!member || member->session->is_spoilt) {
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (member->session->is_again)
        result = recapture_node(member->session, type, &member->tails, set, argument, &node);
    else
        result = add(member, type, set, argument, &node);
    if (result == CUDA_SUCCESS && !tails_set(&member->tails, (CUgraphNode *) &node, 1))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* --- begin and end -------------------------------------------------------------------------- */

static CUresult begin(struct stream *stream, CUstreamCaptureMode mode, CUgraph into,
                      const CUgraphNode *behind, size_t count)
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
    pthread_mutex_lock(&capture_lock);
    session->id = ++last_id;
    session->mode = mode;
    session->thread = &thread_mode;
    session->graph = into ? graph_find(into) : graph_make();
    session->is_into_given = into;
    session->origin = stream;
    member = session->graph ? join(session, stream) : NULL;
    if (member && count && !tails_set(&member->tails, behind, count)) {
        leave(member);
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (member) {
        session->next = sessions;
        sessions = session;
        atomic_fetch_add(&ongoing, 1);
    }
    pthread_mutex_unlock(&capture_lock);
    if (!member) {
        free(session);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult begin_mode(struct stream *stream, CUstreamCaptureMode mode)
{
    REQUIRE((unsigned int) mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    return begin(stream, mode, NULL, NULL, 0);
}

/* Lock and a reference held. */
static void finish(struct session *session)
{
    session->is_ended = true;
    forget(session);
    while (session->members)
        leave(session->members);
    let_go(session);
}

static CUresult end(struct stream *stream, CUgraph *graph)
{
    CUresult result = CUDA_SUCCESS;
    struct session *session;
    struct member *own;

    REQUIRE(graph);
    *graph = NULL;
    pthread_mutex_lock(&capture_lock);
    own = stream->capture;
    if (!own || own->session->is_graphics) {
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    session = own->session;
    session->references++;
    if (session->origin != stream)
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (session->is_spoilt || !recapture_is_whole(session))
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else
        for (const struct member *member = session->members; member; member = member->next)
            if (!tails_cover(&own->tails, &member->tails))
                result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = (CUgraph) session->graph;
    else if (!session->is_into_given)
        graph_free(session->graph);
    finish(session);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* --- recapture into a graph, and capture into a graphics API's commands ------------------------
 */

static CUresult begin_again(struct stream *stream, CUstreamCaptureMode mode, CUgraph graph,
                            CUgraphRecaptureCallback callback, void *data)
{
    CUresult result;
    struct session *session;

    REQUIRE((unsigned int) mode <= CU_STREAM_CAPTURE_MODE_RELAXED && graph);
    result = begin(stream, mode, graph, NULL, 0);
    if (result != CUDA_SUCCESS)
        return result;
    session = ((struct member *) stream->capture)->session;
    session->again = (struct recapture) {.callback = callback, .data = data};
    session->is_again = true;
    return CUDA_SUCCESS;
}

static CUresult begin_graphics(struct stream *stream, const CUstreamCigCaptureParams *params)
{
    CUresult result;

    REQUIRE(params && params->streamCigParams && params->streamCigParams->streamSharedData);
    if (!context_handle(stream->work)->is_graphics)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (params->streamCigParams->streamSharedDataType !=
        STREAM_CIG_DATA_TYPE_VULKAN_COMMAND_BUFFER_HANDLE_NV)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, NULL, NULL, 0);
    if (result == CUDA_SUCCESS)
        ((struct member *) stream->capture)->session->is_graphics = true;
    return result;
}

/* Discard the recorded work: there is no graphics API to execute it. */
static CUresult end_graphics(struct stream *stream)
{
    struct session *session = NULL;

    pthread_mutex_lock(&capture_lock);
    if (stream->capture)
        session = ((struct member *) stream->capture)->session;
    if (!session || !session->is_graphics || session->origin != stream) {
        pthread_mutex_unlock(&capture_lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    session->references++;
    graph_free(session->graph);
    finish(session);
    pthread_mutex_unlock(&capture_lock);
    return CUDA_SUCCESS;
}

STREAM_CALL(cuStreamBeginRecaptureToGraph,
            (CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
             CUgraphRecaptureCallback callbackFunc, void *userData),
            begin_again(stream, mode, hGraph, callbackFunc, userData))
STREAM_CALL(cuStreamBeginCaptureToCig,
            (CUstream hStream, CUstreamCigCaptureParams *streamCigCaptureParams),
            begin_graphics(stream, streamCigCaptureParams))
STREAM_CALL(cuStreamEndCaptureToCig, (CUstream hStream), end_graphics(stream))
STREAM_CALL(cuStreamBeginCapture, (CUstream hStream),
            begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0))
STREAM_CALL(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
            begin_mode(stream, mode))
STREAM_CALL(cuStreamBeginCaptureToGraph,
            (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
             const CUgraphEdgeData *dependencyData __attribute__((unused)), size_t numDependencies,
             CUstreamCaptureMode mode),
            hGraph ? begin(stream, mode, hGraph, dependencies, numDependencies)
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
