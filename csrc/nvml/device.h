/* SPDX-License-Identifier: Apache-2.0 */
/* device.h -- the devices that NVML shows: the quota's, in its order. */
#ifndef PYVGPU_NVML_DEVICE_H
#define PYVGPU_NVML_DEVICE_H

#include "hooks.h"

/* Whether nvmlInit succeeded more often than nvmlShutdown; else the driver gives its own error. */
int nvml_is_open(void);

/* The index in the quota of a handle that the driver gave out, -1 for any other. */
int nvml_device_index(nvmlDevice_t device);

/* In a forked child, where NVML goes on as it was. */
void nvml_after_fork(void);

#endif
