/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h -- streams whose work is written into a graph instead of being done.
 *
 * A call that puts work into a stream asks stream->capture first; if it is set, it hands what it
 * would have done to capture_add.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_CAPTURE_H
#define PYVGPU_SIMULATOR_CUDA_CAPTURE_H

#include "queue.h"

struct event;

/* What a call that a capturing stream does not allow has to answer; SUCCESS if it captures not. */
CUresult capture_refusal(struct stream *stream);

/* The stream is closed while it captures. */
void capture_abandon(struct stream *stream);

CUresult capture_record_event(struct stream *stream, struct event *event);
CUresult capture_wait_event(struct stream *stream, struct event *event);

/* Add a node that does this to the graph, behind what the stream captured so far. */
CUresult capture_add(struct stream *stream, CUgraphNodeType type, const struct work_order *order);

/* The host function itself, now (cuda/hostcall.c). */
CUresult hostcall_submit(struct stream *stream, CUhostFn function, void *data);

/* The same with a host function. */
CUresult capture_add_host(struct stream *stream, CUhostFn function, void *data);

#endif
