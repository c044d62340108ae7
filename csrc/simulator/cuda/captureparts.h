/* SPDX-License-Identifier: Apache-2.0 */
/* captureparts.h -- what captures are made of, for the files that are about them alone. */
#ifndef PYVGPU_SIMULATOR_CUDA_CAPTUREPARTS_H
#define PYVGPU_SIMULATOR_CUDA_CAPTUREPARTS_H

#include "cuda/capture.h"
#include "cuda/tails.h"

/* A capture into a graph that has its nodes already: they become what is captured, in their order.
 */
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
    bool is_graphics;        /* for a graphics API to execute, which there is none of here */
    unsigned int references; /* members, and events that remember it */
};

/* A stream that takes part: what stream->capture points to. */
struct member {
    struct session *session;
    struct stream *stream;
    struct tails tails;
    struct member *next;
};

/* Guards all of it; a callback of the program's may capture. */
extern pthread_mutex_t capture_lock;

/* Whether a stream captures that the legacy stream of *work* would wait for. Lock held. */
bool capture_holds_legacy(const struct work_context *work);

/* Let the next node be this, behind those: *node*. The callback has a say where it was another
 * launch, copy, set or call. Lock held. */
CUresult recapture_node(struct session *session, CUgraphNodeType type, const struct tails *behind,
                        node_set *set, const void *argument, struct node **node);

/* Whether all nodes were captured again. */
bool recapture_is_whole(const struct session *session);

#endif
