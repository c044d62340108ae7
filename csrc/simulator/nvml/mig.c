/* SPDX-License-Identifier: Apache-2.0 */
/* mig.c -- MIG mode, and MIG devices: the compute instances. */
#include "api.h"
#include "lists.h"
#include "source.h"

#include <unistd.h>

static bool can_mig(nvmlDevice_t device)
{
    return source_mig_is_possible(device->index);
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

/* In use is no failure of the call: the mode stays as it is, and pending. A simulated device needs
 * no reset. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    ENTER_DEVICE(device);
    REQUIRE(activation && mode <= NVML_DEVICE_MIG_ENABLE);
    if (!can_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = source_set_mig(device->index, mode == NVML_DEVICE_MIG_ENABLE);
    if (result != NVML_SUCCESS && result != NVML_ERROR_IN_USE)
        return result;
    *activation = result;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_ANY(device);
    REQUIRE(is_mig);
    *is_mig = device->is_mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    ENTER_ANY(mig);
    REQUIRE(device && mig->is_mig);
    *device = nvml_device(mig->parent);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(device);
    REQUIRE(id && device->is_mig);
    *id = device->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(device);
    REQUIRE(id && device->is_mig);
    *id = device->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER_DEVICE(device);
    REQUIRE(count);
    *count = source_mig(device->index) ? SOURCE_MIG_DEVICES : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *mig)
{
    ENTER_DEVICE(device);
    REQUIRE(mig);
    if (!can_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= SOURCE_MIG_DEVICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvml_refresh();
    for (unsigned int unit = nvml_device_count(); unit < SOURCE_DEVICES; unit++) {
        nvmlDevice_t found = nvml_device(unit);

        if (found->is_live && found->parent == device->index && found->mig_index == index) {
            *mig = found;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_ANY(device);
    REQUIRE(attributes);
    if (!device->is_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    return source_mig_attributes(device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_ANY(device);
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
