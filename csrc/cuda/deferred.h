/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.h -- memory that was freed or unmapped on a stream: there until the stream gets to it.
 *
 * Its charge stays as long. Nobody waits: an event behind the free is looked at when somebody asks
 * for memory or about it.
 */
#ifndef PYVGPU_CUDA_DEFERRED_H
#define PYVGPU_CUDA_DEFERRED_H

#include "allocations.h"
#include "compiler.h"
#include "hooks.h"

extern int deferred_count; /* frees not yet seen to be done; 0 for most programs */

/* The driver accepted the free of *allocation* on *stream*, or that of a mapping, which holds its
 * memory until then; *record* is cuEventRecord or its per-thread form, whichever knows the stream.
 */
void deferred_add(const struct allocation *allocation, CUstream stream,
                  CUresult (*record)(CUevent, CUstream));

/* The context *owner* is gone: what was freed in it is, and so are its streams and events. */
void deferred_forget(const void *owner);

void deferred_settle_all(void);

/* Give back what has been freed by now. */
static inline void deferred_settle(void)
{
    if (unlikely(__atomic_load_n(&deferred_count, __ATOMIC_ACQUIRE)))
        deferred_settle_all();
}

void deferred_after_fork(void);

#endif
