/* SPDX-License-Identifier: Apache-2.0 */
/* device.h -- the devices that NVML shows: the quota's, in its order. */
#ifndef PYVGPU_NVML_DEVICE_H
#define PYVGPU_NVML_DEVICE_H

#include "compiler.h"
#include "hooks.h"

/* Whether the entry points of the driver's NVML are known; finds them at the first call. */
int nvml_loaded(void);

/* Whether nvmlInit succeeded more often than nvmlShutdown; else the driver gives its own error. */
int nvml_is_open(void);

/* The index in the quota of a handle that the driver gave out, -1 for any other. */
int nvml_device_index(nvmlDevice_t device);

/* First line of a hook on one device: NVML_SUCCESS and its index in the quota, or what the hook has
 * to answer at once. Of a device that is not the quota's nothing is told. */
nvmlReturn_t nvml_enter(nvmlDevice_t device, unsigned *index);

#define ENTER_DEVICE(device, index)                          \
    do {                                                     \
        nvmlReturn_t entered = nvml_enter(device, &(index)); \
                                                             \
        if (unlikely(entered != NVML_SUCCESS))               \
            return entered;                                  \
    } while (0)

/* The same for a hook on no device. */
#define ENTER()                              \
    do {                                     \
        if (!nvml_is_open())                 \
            return NVML_ERROR_UNINITIALIZED; \
    } while (0)

/* In a forked child, where NVML goes on as it was. */
void nvml_after_fork(void);

#endif
