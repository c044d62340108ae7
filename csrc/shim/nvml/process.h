/* SPDX-License-Identifier: Apache-2.0 */
/* process.h -- lists this container's processes from its ledger. */
#ifndef PYVGPU_SHIM_NVML_PROCESS_H
#define PYVGPU_SHIM_NVML_PROCESS_H

#include "shim/hooks.h"

#include <stddef.h>
#include <stdint.h>

#define NO_INSTANCE 0xffffffffU /* no MIG instance: shown as N/A */

struct nvml_process {
    uint32_t pid;
    uint64_t bytes;
    uint32_t pid_namespace; /* that pid belongs to; 0 if not known */
    const char *comm;       /* its name when it claimed its slot, at most 16 characters */
};

/* Write *process* as entry *place* of the caller's array. */
typedef void nvml_describe(void *entries, size_t place, const struct nvml_process *process);

/* Describe the processes that hold memory of the device *index* in the quota, at most *room* of
 * them; returns how many there are. */
unsigned nvml_each_process(unsigned index, unsigned room, void *entries, nvml_describe *describe);

/* Whether *pid*, as the driver reports it, is a process of this container. The driver uses pids of
 * the machine's initial PID namespace. In another one they cannot be matched: then 0. */
int nvml_is_ours(uint32_t pid);

/* NVML's convention for lists: *count* is the room on entry, and the number needed on return. */
nvmlReturn_t nvml_fit(unsigned int *count, unsigned needed, const void *array);

#endif
