/* SPDX-License-Identifier: Apache-2.0 */
/* entry.h -- enters charged allocations into the table, and refunds them once they are freed. */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_ENTRY_H
#define PYVGPU_SHIM_CUDA_MEMORY_ENTRY_H

#include "core/allocations.h"
#include "core/compiler.h"
#include "shim/hooks.h"

/* Put an allocation into the table; its owner is a context, or NULL: 0 or -ENOMEM. */
int entry_insert(const struct allocation *allocation);

/* The driver has freed *allocation*, which was taken out of the table. Memory that others have open
 * stays charged. For memory that another process pays for, the import ends. */
void entry_release(const struct allocation *allocation);

/* The driver refused to free it: put it back into the table. */
void entry_restore(const struct allocation *allocation);

/* The context of *allocation*, which has been entered, may have been destroyed before, and the
 * memory with it: then release it. */
void entry_check_life(const struct allocation *allocation);

/* Release or restore *allocation*, depending on the driver's answer to the free. */
static inline void entry_freed(const struct allocation *allocation, CUresult result)
{
    if (likely(result == CUDA_SUCCESS))
        entry_release(allocation);
    else
        entry_restore(allocation);
}

#endif
