/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h -- a launch as all the calls that make one bring it, graphs included. */
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

/* Check it as a driver does, and say what it is to the device. */
CUresult launch_order(struct work_context *work, const struct launch *launch,
                      struct work_order *order);

CUresult launch_submit(struct stream *stream, const struct launch *launch);

#endif
