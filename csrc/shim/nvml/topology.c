/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c -- hooks that lead from one device to others, limited to the quota's devices.
 *
 * No function of NVML returns the handle of a device outside the quota, so a call on a handle needs
 * a hook only if its answer is about others.
 */
#include "shim/driver.h"
#include "shim/nvml/device.h"

#define NEIGHBOURS 64 /* more devices than a machine has */

/* Keep only the quota's devices of those that the driver found. As in the driver, *count* is the
 * room in *devices* on entry; 0 to query how many there are. */
static nvmlReturn_t keep_ours(const nvmlDevice_t *found, unsigned all, unsigned *count,
                              nvmlDevice_t *devices)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < all; i++) {
        if (nvml_device_index(found[i]) < 0)
            continue;
        if (devices && *count && kept == *count)
            break;
        if (devices && *count)
            devices[kept] = found[i];
        kept++;
    }
    *count = kept;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *deviceArray)
{
    nvmlDevice_t found[NEIGHBOURS];
    unsigned all = NEIGHBOURS;
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetTopologyNearestGpus(device, level, count ? &all : NULL, found);
    return result == NVML_SUCCESS ? keep_ours(found, all, count, deviceArray) : result;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count,
                                         nvmlDevice_t *deviceArray)
{
    nvmlDevice_t found[NEIGHBOURS];
    unsigned all = NEIGHBOURS;
    nvmlReturn_t result;

    ENTER();
    result = driver.nvmlSystemGetTopologyGpuSet(cpuNumber, count ? &all : NULL, found);
    return result == NVML_SUCCESS ? keep_ours(found, all, count, deviceArray) : result;
}

/* Return a device that the driver found only if it is in the quota. */
static nvmlReturn_t give_ours(nvmlReturn_t result, nvmlDevice_t found, nvmlDevice_t *device)
{
    if (result != NVML_SUCCESS)
        return result;
    if (nvml_device_index(found) < 0)
        return NVML_ERROR_NOT_FOUND;
    *device = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *migDevice)
{
    nvmlDevice_t found = NULL;
    unsigned own;

    ENTER_DEVICE(device, own);
    return give_ours(
        driver.nvmlDeviceGetMigDeviceHandleByIndex(device, index, migDevice ? &found : NULL), found,
        migDevice);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice,
                                                          nvmlDevice_t *device)
{
    nvmlDevice_t found = NULL;
    unsigned own;

    ENTER_DEVICE(migDevice, own);
    return give_ours(
        driver.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(migDevice, device ? &found : NULL),
        found, device);
}

/* Units (chassis of several devices) and devices that the administrator has excluded: none of them
 * is in the quota. */
static nvmlReturn_t count_none(unsigned int *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount)
{
    ENTER();
    return count_none(unitCount);
}

nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned int index, nvmlUnit_t *unit)
{
    (void) index;
    (void) unit;
    ENTER();
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *deviceCount)
{
    return count_none(deviceCount);
}

nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
    (void) index;
    (void) info;
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *deviceCount)
{
    return count_none(deviceCount);
}

nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
    return nvmlGetExcludedDeviceInfoByIndex(index, info);
}
