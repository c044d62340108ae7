/* SPDX-License-Identifier: Apache-2.0 */
/* load.h -- utilisation, of this container's processes alone and as part of its share: a program
 * that has used all the vcore of its quota is at 100.
 */
#ifndef PYVGPU_NVML_LOAD_H
#define PYVGPU_NVML_LOAD_H

#include "hooks.h"

#include <stdint.h>

/* A percentage of the device *index* as one of the share of it, at most 100. */
unsigned load_of_share(unsigned index, unsigned percent);

/* The same of a sum of *count* percentages. */
uint64_t load_sum_of_share(unsigned index, uint64_t sum, unsigned count);

/* What the driver measured of our processes since *last_seen*, scaled; *samples is the caller's to
 * free. NOT_FOUND if there is nothing. */
nvmlReturn_t load_of_processes(nvmlDevice_t device, unsigned index, unsigned long long last_seen,
                               nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count);

/* All our processes together, over about the last second; zeros where nothing is known. */
nvmlProcessUtilizationInfo_v1_t load_now(nvmlDevice_t device, unsigned index);

#endif
