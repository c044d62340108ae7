/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h -- pools whose blocks have a place: pools=placed in machine.conf.
 *
 * A block is one range of one chunk, and the first free range that is large enough is taken. A
 * stream may use what was freed in it, or elsewhere if that free is past or the stream waits for
 * it. Only when the device is full the stream is made to wait for others. A chunk goes as a whole.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_PLACEMENT_H
#define PYVGPU_SIMULATOR_CUDA_PLACEMENT_H

#include "cuda/pool.h"
#include "queue.h"

/* Whether the blocks of *pool* are placed. */
bool placement_has(const struct pool *pool);

/* Bytes as counted, for the stream. *may_wait* lets the stream wait for others' frees. */
CUresult placement_take(struct pool *pool, struct stream *stream, uint64_t bytes, bool may_wait,
                        CUdeviceptr *address);

/* Free the block at *address* in the stream, or at once if that is NULL. INVALID_VALUE: it is none.
 */
CUresult placement_free(struct stream *stream, CUdeviceptr address);

/* Give whole chunks back until *keep* bytes are left. */
void placement_shrink(struct pool *pool, uint64_t keep);

#endif
