/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h -- pools whose blocks have a place: pools=placed in machine.conf.
 *
 * A block is one range of one chunk, allocated first-fit. A stream may reuse ranges that were freed
 * in it, or in another stream if that free is past or the stream waits for it. Only when the device
 * is full is the stream made to wait for others. A chunk is freed as a whole.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_PLACEMENT_H
#define PYVGPU_SIMULATOR_CUDA_PLACEMENT_H

#include "cuda/pool.h"
#include "queue.h"

/* Whether the blocks of *pool* are placed. */
bool placement_has(const struct pool *pool);

/* Allocate bytes (as counted) for the stream. *may_wait*: it may wait for other streams' frees. */
CUresult placement_take(struct pool *pool, struct stream *stream, uint64_t bytes, bool may_wait,
                        CUdeviceptr *address);

/* Free the block at *address* in the stream, or at once if that is NULL. INVALID_VALUE: it is none.
 */
CUresult placement_free(struct stream *stream, CUdeviceptr address);

/* Free whole chunks until *keep* bytes are left. */
void placement_shrink(struct pool *pool, uint64_t keep);

#endif
