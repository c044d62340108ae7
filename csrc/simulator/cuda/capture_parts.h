/* SPDX-License-Identifier: Apache-2.0 */
/* capture_parts.h -- internal structures of stream capture. */
#ifndef PYVGPU_SIMULATOR_CUDA_CAPTURE_PARTS_H
#define PYVGPU_SIMULATOR_CUDA_CAPTURE_PARTS_H

#include "cuda/capture.h"
#include "cuda/tails.h"

/* A capture into a graph that has its nodes already: captured calls update them in their order. */
struct recapture {
    CUgraphRecaptureCallback callback; /* may be NULL */
    void *data;
    size_t next; /* of the graph's nodes */
};

struct session {
    uint64_t id;
    struct session *next; /* of those that have not ended */
    CUstreamCaptureMode mode;
    const void *thread; /* that began it */
    struct graph *graph;
    struct stream *origin;
    struct member *members;
    bool is_spoilt;
    bool is_ended;
    bool is_into_given; /* the graph was there before */
    bool is_again;
    struct recapture again;
    bool is_graphics;        /* for a graphics API to execute; the simulator has none */
    unsigned int references; /* members, and events that remember it */
};

/* A participating stream (stream->capture). */
struct member {
    struct session *session;
    struct stream *stream;
    struct tails tails;
    struct member *next;
};

/* Guards all capture state; a callback of the program may itself capture. */
extern pthread_mutex_t capture_lock;

/* Whether a stream captures that the legacy stream of *work* would wait for. Lock held. */
bool capture_holds_legacy(const struct work_context *work);

/* Make the next node of the graph this one, after those nodes; returned in *node*. The callback
 * decides where it was a different launch, copy, memset or host call. Lock held. */
CUresult recapture_node(struct session *session, CUgraphNodeType type, const struct tails *behind,
                        graph_node_set *set, const void *argument, struct node **node);

/* Whether all nodes were captured again. */
bool recapture_is_whole(const struct session *session);

#endif
