/* SPDX-License-Identifier: Apache-2.0 */
/* green.h -- green contexts: some of a device's processors, in its primary context. */
#ifndef PYVGPU_SIMULATOR_CUDA_GREEN_H
#define PYVGPU_SIMULATOR_CUDA_GREEN_H

#include "cuda/context.h"
#include "queue.h"

/* Open a stream in work, of this context if that is a green one. */
CUresult green_open_stream(struct CUctx_st *context, struct work_context *work, unsigned int flags,
                           int priority, struct stream **stream);

#endif
