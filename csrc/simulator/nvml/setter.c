/* SPDX-License-Identifier: Apache-2.0 */
/* setter.c -- calls that would change a device: they fail, as for an unprivileged user.
 *
 * They fail for root, too, except for limits of cgroups (memory.c) and for MIG (mig.c). The
 * settings of a simulated device are in machine.conf, and many processes rely on them.
 */
#include "api.h"

/* The arguments are there for the signature alone. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define SETTER(name, ...)                                 \
    nvmlReturn_t name(nvmlDevice_t device, ##__VA_ARGS__) \
    {                                                     \
        ENTER_DEVICE(device);                             \
        return NVML_ERROR_NO_PERMISSION;                  \
    }

SETTER(nvmlDeviceSetPersistenceMode, nvmlEnableState_t mode)
SETTER(nvmlDeviceSetComputeMode, nvmlComputeMode_t mode)
SETTER(nvmlDeviceSetEccMode, nvmlEnableState_t mode)
SETTER(nvmlDeviceClearEccErrorCounts, nvmlEccCounterType_t counter)
SETTER(nvmlDeviceSetGpuLockedClocks, unsigned int minimum, unsigned int maximum)
SETTER(nvmlDeviceResetGpuLockedClocks)
SETTER(nvmlDeviceSetMemoryLockedClocks, unsigned int minimum, unsigned int maximum)
SETTER(nvmlDeviceResetMemoryLockedClocks)
SETTER(nvmlDeviceSetApplicationsClocks, unsigned int memory, unsigned int graphics)
SETTER(nvmlDeviceResetApplicationsClocks)
SETTER(nvmlDeviceSetPowerManagementLimit, unsigned int limit)
SETTER(nvmlDeviceSetPowerManagementLimit_v2, nvmlPowerValue_v2_t *value)
SETTER(nvmlDeviceSetTemperatureThreshold, nvmlTemperatureThresholds_t threshold, int *value)
SETTER(nvmlDeviceSetGpuOperationMode, nvmlGpuOperationMode_t mode)
SETTER(nvmlDeviceSetAPIRestriction, nvmlRestrictedAPI_t api, nvmlEnableState_t state)
SETTER(nvmlDeviceSetAccountingMode, nvmlEnableState_t mode)
SETTER(nvmlDeviceClearAccountingPids)
SETTER(nvmlDeviceSetVirtualizationMode, nvmlGpuVirtualizationMode_t mode)
SETTER(nvmlDeviceSetCpuAffinity)
SETTER(nvmlDeviceClearCpuAffinity)
SETTER(nvmlDeviceValidateInforom)
SETTER(nvmlDeviceResetNvLinkErrorCounters, unsigned int link)
