/* SPDX-License-Identifier: Apache-2.0 */
/* device.h -- a program's CUDA objects (streams, kernels, events, graphs, memory) and its calls. */
#ifndef PYVGPU_PROGRAMS_REPLAY_DEVICE_H
#define PYVGPU_PROGRAMS_REPLAY_DEVICE_H

#include "programs/replay/program.h"

/* Create all the program's objects; a CUDA error ends the process with a line on standard error. */
void device_open(const struct program *program);

/* Let the calling thread use it. */
void device_enter(void);

/* Make one call; a CUDA error ends the process. */
void device_call(const struct program_call *call);

/* Wait until all work is done. */
void device_finish(void);

#endif
