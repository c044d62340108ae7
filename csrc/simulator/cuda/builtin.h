/* SPDX-License-Identifier: Apache-2.0 */
/* builtin.h -- built-in kernels, which the simulator computes itself, selected by name. */
#ifndef PYVGPU_SIMULATOR_CUDA_BUILTIN_H
#define PYVGPU_SIMULATOR_CUDA_BUILTIN_H

#include "queue.h"

enum { BUILTIN_ARGUMENTS = 4 };

enum builtin builtin_find(const char *name);

/* Read the arguments of a launch: pointers to each, or a packed buffer. False: too few. */
bool builtin_arguments(enum builtin builtin, void *const *parameters, const void *packed,
                       size_t size, uint64_t *arguments);

/* Fill in the duration on the device, and the effect on memory at the end. */
void builtin_order(enum builtin builtin, const uint64_t *arguments,
                   const struct device_config *config, struct work_order *order);

#endif
