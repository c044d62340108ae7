/* SPDX-License-Identifier: Apache-2.0 */
/* visible.h -- the devices that CUDA_VISIBLE_DEVICES makes visible to a process. */
#ifndef PYVGPU_SIMULATOR_CUDA_VISIBLE_H
#define PYVGPU_SIMULATOR_CUDA_VISIBLE_H

#include "config.h"

/* Fill devices (room for CONFIG_DEVICES) with the devices that the list names, in its order;
 * returns how many. A NULL list names all. Like NVIDIA's driver: entries are indexes or UUID
 * prefixes; the list ends at the first entry that names no device, or several; a device named twice
 * leaves no device at all.
 */
int visible_devices(const struct machine_config *config, const char *list, int *devices);

/* The variable's value in the environment as it is now; NULL if it is not set. */
const char *visible_list(void);

#endif
