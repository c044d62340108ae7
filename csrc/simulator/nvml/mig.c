/* SPDX-License-Identifier: Apache-2.0 */
/* mig.c -- MIG mode, without instances. */
#include "api.h"
#include "source.h"

enum { MIG_INSTANCES = 7 }; /* the most on one device */

/* MIG exists on the large boards of these architectures. */
static bool can_mig(nvmlDevice_t device)
{
    return device->capability_minor == 0 && device->capability_major >= 8 &&
           device->capability_major <= 10;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_DEVICE(device);
    REQUIRE(current && pending);
    bool is_mig = source_mig(device->index);
    if (!is_mig && !can_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = is_mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_DEVICE(device);
    REQUIRE(is_mig);
    *is_mig = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    ENTER_DEVICE(mig);
    REQUIRE(device);
    return NVML_ERROR_INVALID_ARGUMENT; /* it is none */
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER_DEVICE(device);
    REQUIRE(count);
    *count = source_mig(device->index) ? MIG_INSTANCES : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *mig)
{
    (void) index;
    ENTER_DEVICE(device);
    REQUIRE(mig);
    return can_mig(device) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}
