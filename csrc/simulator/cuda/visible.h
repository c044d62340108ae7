/* SPDX-License-Identifier: Apache-2.0 */
/* visible.h -- the devices that CUDA_VISIBLE_DEVICES makes visible to a process. */
#ifndef PYVGPU_SIMULATOR_CUDA_VISIBLE_H
#define PYVGPU_SIMULATOR_CUDA_VISIBLE_H

#include "machine.h"

/* The devices in MIG mode, and all compute instances of the machine. */
struct visible_mig {
    bool enabled[CONFIG_GPUS];
    uint32_t units[CONFIG_DEVICES];
    uint32_t count;
};

/* Fill devices (room for CONFIG_DEVICES) with the devices that the list names, in its order;
 * returns how many. A NULL list names all. Like NVIDIA's driver: entries are indexes or UUID
 * prefixes; the list ends at the first entry that names no device, or several; a device named twice
 * leaves no device at all. An entry for a device in MIG mode stands for its first compute instance.
 * A process uses one compute instance at most, and then no other device.
 */
int visible_devices(const struct machine_config *config, const struct visible_mig *mig,
                    const char *list, int *devices);

/* The same for the machine as it is now and the environment of this process. */
int visible_now(struct machine *machine, int *devices);

/* The variable's value in the environment as it is now; NULL if it is not set. */
const char *visible_list(void);

#endif
