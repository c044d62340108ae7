/* SPDX-License-Identifier: Apache-2.0 */
/* ecc.c -- ECC counters, always zero, and MIG mode without instances. */
#include "api.h"
#include "source.h"

enum { MIG_INSTANCES = 7 }; /* the most on one device */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending)
{
    ENTER_DEVICE(device);
    REQUIRE(current && pending);
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER_DEVICE(device);
    REQUIRE(mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

static nvmlReturn_t count_errors(nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                 unsigned long long *count)
{
    if (!count || (unsigned int) error >= NVML_MEMORY_ERROR_TYPE_COUNT ||
        (unsigned int) counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                         nvmlEccCounterType_t counter, unsigned long long *count)
{
    ENTER_DEVICE(device);
    return count_errors(error, counter, count);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location,
                                             unsigned long long *count)
{
    ENTER_DEVICE(device);
    if ((unsigned int) location >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return count_errors(error, counter, count);
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                            nvmlEccCounterType_t counter,
                                            nvmlEccErrorCounts_t *counts)
{
    unsigned long long total;

    ENTER_DEVICE(device);
    REQUIRE(counts);
    nvmlReturn_t result = count_errors(error, counter, &total);
    if (result == NVML_SUCCESS)
        *counts = (nvmlEccErrorCounts_t) {0};
    return result;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER_DEVICE(device);
    REQUIRE(status);
    REQUIRE_VERSION(status, nvmlEccSramErrorStatus_v1);
    *status = (nvmlEccSramErrorStatus_t) {.version = nvmlEccSramErrorStatus_v1};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                       unsigned int *count, unsigned long long *addresses)
{
    (void) addresses;
    ENTER_DEVICE(device);
    if (!count || (unsigned int) cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    ENTER_DEVICE(device);
    REQUIRE(pending);
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failed)
{
    ENTER_DEVICE(device);
    REQUIRE(correctable && uncorrectable && pending && failed);
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}

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
