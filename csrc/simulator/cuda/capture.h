/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h -- stream capture: work is recorded into a graph instead of being done.
 *
 * A call that puts work into a stream checks stream->capture first; if it is set, the call records
 * its work there. A stream joins a capture by waiting for an event that was recorded in it.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_CAPTURE_H
#define PYVGPU_SIMULATOR_CUDA_CAPTURE_H

#include "queue.h"

struct event;
struct fill;
struct launch;
struct node;
struct transfer;

/* The error of a call that is not allowed in a capturing stream; it invalidates the capture.
 * SUCCESS if the stream does not capture.
 */
CUresult capture_refusal(struct stream *stream);

/* The error of a call that might wait for work of any stream, or for the device: while this thread
 * captures, or another one in the mode GLOBAL, the call fails and invalidates their captures,
 * unless this thread has exchanged its mode (as on an H100 with driver 580).
 */
CUresult capture_prohibits(void);

/* The stream is closed while it captures. */
void capture_abandon(struct stream *stream);

CUresult capture_record_event(struct stream *stream, struct event *event);
CUresult capture_wait_event(struct stream *stream, struct event *event);

/* The event is recorded again, or destroyed: drop its capture state. */
void capture_forget_event(struct event *event);

/* Add a node after those that the stream captured so far, let set describe it, and make it the
 * stream's last. */
CUresult capture_add(struct stream *stream, CUgraphNodeType type,
                     CUresult (*set)(struct node *node, const void *argument),
                     const void *argument);

/* Add such a node after those that the stream captured so far. */
CUresult capture_add_launch(struct stream *stream, const struct launch *launch);
CUresult capture_add_transfer(struct stream *stream, const struct transfer *transfer);
CUresult capture_add_fill(struct stream *stream, const struct fill *fill);
CUresult capture_add_host(struct stream *stream, CUhostFn function, void *data);
CUresult capture_add_graph(struct stream *stream, CUgraph graph);
CUresult capture_add_empty(struct stream *stream);
CUresult capture_add_allocation(struct stream *stream, uint64_t bytes, CUdevice ordinal,
                                CUdeviceptr *address);
CUresult capture_add_free(struct stream *stream, CUdeviceptr address);

/* Call the function when the stream reaches it (cuda/hostcall.c). */
CUresult hostcall_submit(struct stream *stream, CUhostFn function, void *data);

#endif
