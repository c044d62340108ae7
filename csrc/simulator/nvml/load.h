/* SPDX-License-Identifier: Apache-2.0 */
/* load.h -- how busy a device is, for the calls whose answers follow from it. */
#ifndef PYVGPU_SIMULATOR_NVML_LOAD_H
#define PYVGPU_SIMULATOR_NVML_LOAD_H

#include "api.h"

enum { LOAD_SAMPLES = 120 };

/* Percent of about the last second. */
unsigned int load_sm(nvmlDevice_t device);

/* What follows from the load: a device runs warmer, and takes more power, when it works. */
unsigned int load_temperature(nvmlDevice_t device); /* degrees Celsius */
unsigned int load_power_mw(nvmlDevice_t device);
unsigned int load_sm_clock_mhz(nvmlDevice_t device);

#endif
