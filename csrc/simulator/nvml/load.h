/* SPDX-License-Identifier: Apache-2.0 */
/* load.h -- utilization of a device, and the values derived from it. */
#ifndef PYVGPU_SIMULATOR_NVML_LOAD_H
#define PYVGPU_SIMULATOR_NVML_LOAD_H

#include "api.h"

enum { LOAD_SAMPLES = 120 };

/* Percent over about the last second. */
unsigned int load_sm(nvmlDevice_t device);

/* Derived values: a device is warmer, and takes more power, under load. */
unsigned int load_temperature(nvmlDevice_t device); /* degrees Celsius */
unsigned int load_power_mw(nvmlDevice_t device);
unsigned int load_sm_clock_mhz(nvmlDevice_t device);

#endif
