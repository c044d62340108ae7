/* SPDX-License-Identifier: Apache-2.0 */
/* ecc.c -- ECC counters, which are always zero. */
#include "api.h"

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
    ENTER_ANY(device);
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
