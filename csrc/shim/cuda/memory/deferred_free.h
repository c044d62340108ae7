/* SPDX-License-Identifier: Apache-2.0 */
/* deferred_free.h -- memory freed or unmapped on a stream, which the driver frees later.
 *
 * The memory stays charged until the stream has reached the free. No call waits for that: an event
 * is recorded after the free, and queried when the program allocates or queries memory.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_DEFERRED_FREE_H
#define PYVGPU_SHIM_CUDA_MEMORY_DEFERRED_FREE_H

#include "core/allocations.h"
#include "core/compiler.h"
#include "shim/hooks.h"

struct context;

extern int deferred_free_count; /* frees not known to be complete; 0 in most programs */

/* cuEventRecord, or its per-thread form. */
typedef CUresult event_record(CUevent event, CUstream stream);

/* Keep *allocation* charged until *stream* has reached its free, which the driver has accepted. An
 * allocation may be a mapping, whose unmap releases its physical memory. *record* fits the form in
 * which the program named the stream. */
void deferred_free_add(const struct allocation *allocation, CUstream stream, event_record *record);

/* Settle the frees on streams of *context*, and of its memory: it was destroyed with both. */
void deferred_free_context_ended(const struct context *context);

/* Refund memory that has been freed by now. */
void deferred_free_settle_all(void);

/* The same, cheap while no free is pending. */
static inline void deferred_free_settle(void)
{
    if (unlikely(__atomic_load_n(&deferred_free_count, __ATOMIC_ACQUIRE)))
        deferred_free_settle_all();
}

/* Forget the parent's pending frees, in the child. */
void deferred_free_after_fork(void);

#endif
