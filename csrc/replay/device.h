/* SPDX-License-Identifier: Apache-2.0 */
/* device.h -- what a program has of the device: streams, kernels, events, graphs, memory. */
#ifndef PYVGPU_REPLAY_DEVICE_H
#define PYVGPU_REPLAY_DEVICE_H

#include "program.h"

/* Make all that the program uses; a CUDA error ends the process with a line on standard error. */
void device_open(const struct program *program);

/* Let the calling thread use it. */
void device_enter(void);

/* Do one call; a CUDA error ends the process. */
void device_call(const struct program_call *call);

/* Wait until nothing runs any more. */
void device_finish(void);

#endif
