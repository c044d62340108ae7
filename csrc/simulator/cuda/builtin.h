/* SPDX-License-Identifier: Apache-2.0 */
/* builtin.h -- the kernels the simulator computes itself, found by their names. */
#ifndef PYVGPU_SIMULATOR_CUDA_BUILTIN_H
#define PYVGPU_SIMULATOR_CUDA_BUILTIN_H

#include "queue.h"

enum { BUILTIN_ARGUMENTS = 4 };

enum builtin builtin_find(const char *name);

/* Its arguments, as a launch gives them: pointers to each, or a packed buffer. False: too few. */
bool builtin_arguments(enum builtin builtin, void *const *parameters, const void *packed,
                       size_t size, uint64_t *arguments);

/* How long it takes on the device, and what it does to bytes at its end. */
void builtin_order(enum builtin builtin, const uint64_t *arguments,
                   const struct device_config *config, struct work_order *order);

#endif
