/* SPDX-License-Identifier: Apache-2.0 */
/* lists.h -- process lists of a device, for all versions of the calls. */
#ifndef PYVGPU_SIMULATOR_NVML_LISTS_H
#define PYVGPU_SIMULATOR_NVML_LISTS_H

#include "api.h"
#include "source.h"

enum nvml_list { NVML_LIST_COMPUTE, NVML_LIST_GRAPHICS, NVML_LIST_MPS, NVML_LIST_ALL };

/* Write process as entry number index of the array that the caller gave. */
typedef void nvml_describe(void *entries, size_t index, const struct source_process *process);

/* count is the capacity on entry, the number on return; INSUFFICIENT_SIZE if there are more. */
nvmlReturn_t nvml_list(nvmlDevice_t device, enum nvml_list kind, unsigned int *count, void *entries,
                       nvml_describe *describe);

/* Check and set the caller's count in NVML's convention: capacity on entry, number on return. */
nvmlReturn_t nvml_fit(unsigned int *count, size_t needed, const void *array);

void nvml_describe_detail(nvmlProcessDetail_v1_t *detail, const struct source_process *process);

/* The command name of a process (system.c). */
nvmlReturn_t nvml_process_name(unsigned int pid, char *name, unsigned int length);

#endif
