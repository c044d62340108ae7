/* SPDX-License-Identifier: Apache-2.0 */
/* load.h -- GPU utilization of this container's processes only, relative to its share: a program
 * that uses all the vcore of its quota is at 100.
 */
#ifndef PYVGPU_SHIM_NVML_LOAD_H
#define PYVGPU_SHIM_NVML_LOAD_H

#include "shim/hooks.h"

#include <stdint.h>

/* Convert a percentage of the device *index* to one of its share, at most 100. */
unsigned load_of_share(unsigned index, unsigned percent);

/* The same for a sum of *count* percentages. */
uint64_t load_sum_of_share(unsigned index, uint64_t sum, unsigned count);

/* The driver's samples of our processes since *last_seen*, scaled; the caller frees *samples.
 * NOT_FOUND if there are none. */
nvmlReturn_t load_of_processes(nvmlDevice_t device, unsigned index, unsigned long long last_seen,
                               nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count);

/* The sum over our processes, for about the last second; zeros where nothing is known. */
nvmlProcessUtilizationInfo_v1_t load_now(nvmlDevice_t device, unsigned index);

#endif
