/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h -- streams whose work is written into a graph instead of being done.
 *
 * A call that puts work into a stream looks at stream->capture first; if it is set, it hands over
 * what it would have done. A stream is drawn into a capture by waiting for an event that was
 * recorded in it.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_CAPTURE_H
#define PYVGPU_SIMULATOR_CUDA_CAPTURE_H

#include "queue.h"

struct event;
struct fill;
struct launch;
struct node;
struct transfer;

/* What a call that a capturing stream does not allow has to answer, after which the capture is
 * spoilt; SUCCESS if the stream captures not.
 */
CUresult capture_refusal(struct stream *stream);

/* What a call has to answer that might wait for work of any stream, or for the device: while this
 * thread captures, or another one in the mode GLOBAL, it is refused, and their captures are spoilt,
 * unless this thread has exchanged its mode (as an H100 with driver 580 does).
 */
CUresult capture_prohibits(void);

/* The stream is closed while it captures. */
void capture_abandon(struct stream *stream);

CUresult capture_record_event(struct stream *stream, struct event *event);
CUresult capture_wait_event(struct stream *stream, struct event *event);

/* The event is recorded anew, or gone. */
void capture_forget_event(struct event *event);

/* Add a node behind what the stream captured so far, let set describe it, and stand behind it. */
CUresult capture_add(struct stream *stream, CUgraphNodeType type,
                     CUresult (*set)(struct node *node, const void *argument),
                     const void *argument);

/* Add a node that does this, behind what the stream captured so far. */
CUresult capture_add_launch(struct stream *stream, const struct launch *launch);
CUresult capture_add_transfer(struct stream *stream, const struct transfer *transfer);
CUresult capture_add_fill(struct stream *stream, const struct fill *fill);
CUresult capture_add_host(struct stream *stream, CUhostFn function, void *data);
CUresult capture_add_graph(struct stream *stream, CUgraph graph);
CUresult capture_add_empty(struct stream *stream);
CUresult capture_add_allocation(struct stream *stream, uint64_t bytes, CUdevice ordinal,
                                CUdeviceptr *address);
CUresult capture_add_free(struct stream *stream, CUdeviceptr address);

/* Call the function when the stream comes to it (cuda/hostcall.c). */
CUresult hostcall_submit(struct stream *stream, CUhostFn function, void *data);

#endif
