/* SPDX-License-Identifier: Apache-2.0 */
/* process.h -- the processes of this container, as its ledger knows them. */
#ifndef PYVGPU_NVML_PROCESS_H
#define PYVGPU_NVML_PROCESS_H

#include "hooks.h"

#include <stddef.h>
#include <stdint.h>

#define NO_INSTANCE 0xffffffffU /* no MIG instance: shown as N/A */

struct nvml_process {
    uint32_t pid;
    uint64_t bytes;
    uint32_t pid_namespace; /* in which pid counts; 0 if not known */
    const char *comm;       /* what it was called when it began, in at most 16 characters */
};

/* Write *process* as entry *place* of the caller's array. */
typedef void nvml_describe(void *entries, size_t place, const struct nvml_process *process);

/* Describe those that hold memory of the device *index* in the quota, as many as *room* allows;
 * returns how many there are. */
unsigned nvml_each_process(unsigned index, unsigned room, void *entries, nvml_describe *describe);

/* Whether the process that the driver calls *pid* is one of this container's. The driver counts in
 * the machine's first PID namespace. From within another one nobody's pid can be told: no. */
int nvml_is_ours(uint32_t pid);

/* How callers of NVML learn how many there are: count is the room on the way in. */
nvmlReturn_t nvml_fit(unsigned int *count, unsigned needed, const void *array);

#endif
