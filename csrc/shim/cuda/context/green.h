/* SPDX-License-Identifier: Apache-2.0 */
/* green.h -- green contexts: partitions of a device's SMs, in its primary context. */
#ifndef PYVGPU_SHIM_CUDA_CONTEXT_GREEN_H
#define PYVGPU_SHIM_CUDA_CONTEXT_GREEN_H

#include "shim/hooks.h"

#include <stdint.h>

struct green {
    struct green *next;
    CUgreenCtx handle;
    unsigned device;
    uint64_t bytes;    /* as charged: the quota may have another figure by now */
    CUcontext context; /* its handle as a CUcontext, for programs and the driver; or NULL */
};

void green_add(struct green *green);

/* Remove it; NULL if the handle is unknown. */
struct green *green_take(CUgreenCtx handle);

/* Retry to get the context handles of green contexts that have none yet; 1 if one was found. */
int green_name(void);

/* Whether *device* has green contexts, which keep its primary context alive. */
int green_exists(unsigned device);

void green_after_fork(void);

#endif
