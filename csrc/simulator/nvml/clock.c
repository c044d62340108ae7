/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c -- clock rates. The memory clock is constant; the others drop when the device is idle. */
#include "load.h"

#define VIDEO_MHZ(device)  ((device)->sm_clock_mhz * 7 / 8)
#define GRAPHICS_STEP_MHZ  15U
#define GRAPHICS_LEAST_MHZ 210U

/* Reasons a real board can have; of these, a simulated one only ever has the first. */
#define POSSIBLE_REASONS                                                                        \
    (nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonApplicationsClocksSetting |            \
     nvmlClocksEventReasonSwPowerCap | nvmlClocksThrottleReasonHwSlowdown |                     \
     nvmlClocksEventReasonSyncBoost | nvmlClocksEventReasonSwThermalSlowdown |                  \
     nvmlClocksThrottleReasonHwThermalSlowdown | nvmlClocksThrottleReasonHwPowerBrakeSlowdown | \
     nvmlClocksEventReasonDisplayClockSetting)

static nvmlReturn_t maximum_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    REQUIRE(mhz);
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
        *mhz = device->sm_clock_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *mhz = device->memory_clock_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        *mhz = VIDEO_MHZ(device);
        return NVML_SUCCESS;
    case NVML_CLOCK_COUNT:
        break;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t current_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    nvmlReturn_t result = maximum_clock(device, type, mhz);

    if (result == NVML_SUCCESS && type != NVML_CLOCK_MEM)
        *mhz = *mhz * load_sm_clock_mhz(device) / device->sm_clock_mhz;
    return result;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER_DEVICE(device);
    return current_clock(device, type, mhz);
}

#define MAXIMUM(name)                                                               \
    nvmlReturn_t name(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) \
    {                                                                               \
        ENTER_DEVICE(device);                                                       \
        return maximum_clock(device, type, mhz);                                    \
    }

MAXIMUM(nvmlDeviceGetMaxClockInfo)
MAXIMUM(nvmlDeviceGetMaxCustomerBoostClock)
MAXIMUM(nvmlDeviceGetApplicationsClock)
MAXIMUM(nvmlDeviceGetDefaultApplicationsClock)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int *mhz)
{
    ENTER_DEVICE(device);
    if ((unsigned int) id >= NVML_CLOCK_ID_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (id == NVML_CLOCK_ID_CURRENT)
        return current_clock(device, type, mhz);
    return maximum_clock(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
                                                unsigned int *clocks)
{
    ENTER_DEVICE(device);
    REQUIRE(count);
    bool room = clocks && *count >= 1;
    *count = 1;
    if (!room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    clocks[0] = device->memory_clock_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                  unsigned int *count, unsigned int *clocks)
{
    unsigned int needed = 1;

    ENTER_DEVICE(device);
    REQUIRE(count);
    if (memory_mhz != device->memory_clock_mhz)
        return NVML_ERROR_NOT_FOUND;
    if (device->sm_clock_mhz > GRAPHICS_LEAST_MHZ)
        needed += (device->sm_clock_mhz - GRAPHICS_LEAST_MHZ) / GRAPHICS_STEP_MHZ;
    bool room = clocks && *count >= needed;
    *count = needed;
    if (!room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < needed; i++)
        clocks[i] = device->sm_clock_mhz - i * GRAPHICS_STEP_MHZ;
    return NVML_SUCCESS;
}

static nvmlReturn_t event_reasons(nvmlDevice_t device, unsigned long long *reasons)
{
    REQUIRE(reasons);
    *reasons = load_sm(device) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle;
    return NVML_SUCCESS;
}

/* The same two calls under their names before and since release 535. */
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons)
{
    ENTER_DEVICE(device);
    return event_reasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *reasons)
{
    ENTER_DEVICE(device);
    return event_reasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                      unsigned long long *reasons)
{
    ENTER_DEVICE(device);
    REQUIRE(reasons);
    *reasons = POSSIBLE_REASONS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                         unsigned long long *reasons)
{
    ENTER_DEVICE(device);
    REQUIRE(reasons);
    *reasons = POSSIBLE_REASONS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *value)
{
    ENTER_DEVICE(device);
    if (!value || (unsigned int) counter >= NVML_PCIE_UTIL_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = 0;
    return NVML_SUCCESS;
}
