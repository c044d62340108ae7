/* SPDX-License-Identifier: Apache-2.0 */
/* device.h -- restricts NVML to the quota's devices, in the quota's order. */
#ifndef PYVGPU_SHIM_NVML_DEVICE_H
#define PYVGPU_SHIM_NVML_DEVICE_H

#include "core/compiler.h"
#include "shim/hooks.h"

/* Whether the entry points of the driver's NVML are known; finds them at the first call. */
int nvml_loaded(void);

/* Whether nvmlInit succeeded more often than nvmlShutdown. */
int nvml_is_open(void);

/* The index in the quota of a handle that the driver gave out, -1 for any other. */
int nvml_device_index(nvmlDevice_t device);

/* First line of a hook on one device: NVML_SUCCESS and its index in the quota, or the error to
 * return at once. Nothing is revealed about a device that is not in the quota. */
nvmlReturn_t nvml_enter(nvmlDevice_t device, unsigned *index);

#define ENTER_DEVICE(device, index)                          \
    do {                                                     \
        nvmlReturn_t entered = nvml_enter(device, &(index)); \
                                                             \
        if (unlikely(entered != NVML_SUCCESS))               \
            return entered;                                  \
    } while (0)

/* The same for a hook without a device. */
#define ENTER()                              \
    do {                                     \
        if (!nvml_is_open())                 \
            return NVML_ERROR_UNINITIALIZED; \
    } while (0)

/* In a forked child, where NVML stays initialised. */
void nvml_after_fork(void);

#endif
