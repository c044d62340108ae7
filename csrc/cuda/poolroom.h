/* SPDX-License-Identifier: Apache-2.0 */
/* poolroom.h -- which memory of the pools is known to be free, and in which streams.
 *
 * Beyond the quota a request may be served only from what its pool holds already, and no call of
 * the driver says "but do not grow". So blocks are followed by their addresses, and a request is
 * let through without a charge if there is one free range for it that the driver's rules give to
 * its stream: what was freed in that stream; what was freed in another one and is past; or what
 * the stream is made to wait for, on the device, as the driver itself does when it cannot grow.
 *
 * A pool is followed once the rest of the quota is less than what the pool holds: before that, any
 * request that the pool could serve can be charged. So other programs pay nothing for it.
 */
#ifndef PYVGPU_CUDA_POOLROOM_H
#define PYVGPU_CUDA_POOLROOM_H

#include "cuda/flight.h"
#include "cuda/pool.h"

extern int poolroom_streams;     /* pools are used by several streams */
extern uintptr_t poolroom_first; /* the first that used one, as flight_name() */

/* A block that is being freed. */
struct poolroom_block {
    struct pool *pool; /* NULL: the address is of none */
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t region;
};

/* A pool is used by *stream*: it allocates or frees. */
static inline void poolroom_note_stream(const struct stream *stream)
{
    uintptr_t name = flight_name(stream);
    uintptr_t first = __atomic_load_n(&poolroom_first, __ATOMIC_RELAXED);

    if (unlikely(first != name) &&
        (first || !__atomic_compare_exchange_n(&poolroom_first, &first, name, 0, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED)))
        __atomic_store_n(&poolroom_streams, 1, __ATOMIC_RELAXED);
}

/* The driver gave the block at *address* for *claim*, whose subject is its stream. */
void poolroom_use(struct pool *pool, struct claim *claim, CUdeviceptr address);

/* Whether *pool* serves the claim without growing, for certain. May make its stream wait for
 * others; never waits itself. */
int poolroom_has(struct pool *pool, CUmemoryPool handle, const struct claim *claim);

/* growth_source.note_held of pools. */
void poolroom_note_held(struct growth *growth, const struct claim *claim, int64_t more);

/* The pool grew: decide whether it is followed from now on. */
void poolroom_look(struct pool *pool);

/* The driver did what was not expected: nothing is known to be free. */
void poolroom_forget(struct pool *pool);

/* A block is about to be freed; then it was, in *stream* (NULL: at once), or it was not. */
struct poolroom_block poolroom_take(CUdeviceptr address);
void poolroom_put(const struct poolroom_block *block, const struct stream *stream);
void poolroom_restore(const struct poolroom_block *block);

/* Free at once what may be a block. */
CUresult poolroom_free(CUdeviceptr address);

/* The stream is about to end; the context is gone. */
void poolroom_end_stream(CUstream stream);
void poolroom_end_context(CUcontext context);

void poolroom_after_fork(void);

#endif
