/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h -- what this process's memory pools hold. */
#ifndef PYVGPU_CUDA_POOL_H
#define PYVGPU_CUDA_POOL_H

#include "hooks.h"

extern int pool_count; /* pools seen in this process; 0 for most programs */

void pool_reread_all(unsigned device);

/* Settle every pool of *device* to what the driver says that it holds now. */
static inline void pool_reread(unsigned device)
{
    if (__builtin_expect(__atomic_load_n(&pool_count, __ATOMIC_ACQUIRE), 0))
        pool_reread_all(device);
}

/* Give back what the pools of *device* hold and do not use; 0 if there are no pools. */
int pool_make_room(unsigned device);

void pool_after_fork(void);

#endif
