/* SPDX-License-Identifier: Apache-2.0 */
/* pool_ranges.h -- tracks free ranges of memory pools by stream, to prove that a request fits.
 *
 * When the quota is spent, a request may be served only from memory that its pool holds already,
 * and the driver has no call that forbids growth. So blocks are followed by their addresses, and a
 * request is let through without a charge if there is one free range for it that the driver's rules
 * allow its stream to use: one freed in that stream; one freed in another stream that has got past
 * the free; or one whose free the stream is made to wait for, on the device, as the driver itself
 * does when it cannot grow.
 *
 * A pool is followed once the rest of the quota is less than what the pool holds: before that, any
 * request that the pool could serve can be charged. So this costs other programs nothing.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_POOL_RANGES_H
#define PYVGPU_SHIM_CUDA_MEMORY_POOL_RANGES_H

#include "shim/cuda/work/stream.h"
#include "shim/cuda/memory/pool.h"

struct context;

extern int pool_ranges_streams;     /* several streams use pools */
extern uintptr_t pool_ranges_first; /* the first stream that used one, by stream_name() */

/* A block that is being freed. */
struct pool_ranges_block {
    struct pool *pool; /* NULL: the address belongs to none */
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t region;
};

/* *stream* uses a pool: it allocates or frees. */
static inline void pool_ranges_note_stream(const struct stream *stream)
{
    uintptr_t name = stream_name(stream);
    uintptr_t first = __atomic_load_n(&pool_ranges_first, __ATOMIC_RELAXED);

    if (unlikely(first != name) &&
        (first || !__atomic_compare_exchange_n(&pool_ranges_first, &first, name, 0,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED)))
        __atomic_store_n(&pool_ranges_streams, 1, __ATOMIC_RELAXED);
}

/* The driver allocated the block at *address* for *claim*, whose subject is its stream. */
void pool_ranges_use(struct pool *pool, struct claim *claim, CUdeviceptr address);

/* Whether *pool* can certainly serve the claim without growing. May make its stream wait for
 * others; never blocks the caller. */
int pool_ranges_has(struct pool *pool, CUmemoryPool handle, const struct claim *claim);

/* pool_charge_source.note_held of pools. */
void pool_ranges_note_held(struct pool_charge *growth, const struct claim *claim, int64_t more);

/* The pool grew: decide whether to follow it from now on. */
void pool_ranges_read(struct pool *pool);

/* The driver did something unexpected: nothing is known to be free any more. */
void pool_ranges_forget(struct pool *pool);

/* A block is about to be freed: take it. Then put it, freed in *stream* (NULL: at once), or restore
 * it if the call failed. */
struct pool_ranges_block pool_ranges_take(CUdeviceptr address);
void pool_ranges_put(const struct pool_ranges_block *block, const struct stream *stream);
void pool_ranges_restore(const struct pool_ranges_block *block);

/* Free an address at once (cuMemFree), which may be a block. */
CUresult pool_ranges_free(CUdeviceptr address);

/* The stream is about to be destroyed. */
void pool_ranges_end_stream(CUstream stream);

void pool_ranges_context_ended(const struct context *context);

void pool_ranges_after_fork(void);

#endif
