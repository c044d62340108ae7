/* SPDX-License-Identifier: Apache-2.0 */
/* deferred_free.h -- memory freed or unmapped on a stream, which stays until the stream gets there.
 *
 * Its charge stays as long. No call waits for that: an event behind the free is queried when the
 * program asks for memory or about it.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_DEFERRED_FREE_H
#define PYVGPU_SHIM_CUDA_MEMORY_DEFERRED_FREE_H

#include "core/allocations.h"
#include "core/compiler.h"
#include "shim/hooks.h"

struct context;

extern int deferred_free_count; /* frees not yet seen to be done; 0 for most programs */

/* The driver accepted the free of *allocation* on *stream*, or of a mapping, which holds its memory
 * until then; *record* is cuEventRecord or its per-thread form, as fits the stream. */
void deferred_free_add(const struct allocation *allocation, CUstream stream,
                       CUresult (*record)(CUevent, CUstream));

/* Its streams, events and pending frees went with it. */
void deferred_free_context_ended(const struct context *context);

void deferred_free_settle_all(void);

/* Refund memory that has been freed by now. */
static inline void deferred_free_settle(void)
{
    if (unlikely(__atomic_load_n(&deferred_free_count, __ATOMIC_ACQUIRE)))
        deferred_free_settle_all();
}

void deferred_free_after_fork(void);

#endif
