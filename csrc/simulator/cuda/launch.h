/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h -- parameters of a kernel launch, common to all launching calls and graphs. */
#ifndef PYVGPU_SIMULATOR_CUDA_LAUNCH_H
#define PYVGPU_SIMULATOR_CUDA_LAUNCH_H

#include "queue.h"

struct launch {
    CUfunction function;
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    bool cooperative;
    void **parameters;
    void **extra;
};

/* Check a launch as a driver does, and fill in the device's work. */
CUresult launch_order(struct work_context *work, const struct launch *launch,
                      struct work_order *order);

CUresult launch_submit(struct stream *stream, const struct launch *launch);

#endif
