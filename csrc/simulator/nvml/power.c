/* SPDX-License-Identifier: Apache-2.0 */
/* power.c -- power, temperature and fans, derived from the load. */
#include "load.h"

#include "source.h"

#include <string.h>
#include <time.h>

#define SHUTDOWN_TEMPERATURE 95
#define SLOWDOWN_TEMPERATURE 90
#define MAXIMUM_TEMPERATURE  87
#define MEMORY_MAXIMUM       95

/* Millijoules: a tenth of the limit since the host started, more while it worked. */
static unsigned long long energy_mj(nvmlDevice_t device)
{
    struct timespec up;

    clock_gettime(CLOCK_BOOTTIME, &up);
    double idle =
        (double) device->power_limit_mw / 10 * ((double) up.tv_sec + 1e-9 * (double) up.tv_nsec);
    double work =
        (double) device->power_limit_mw * 8 / 10 * 1e-9 * (double) source_busy_ns(device->index);
    return (unsigned long long) (idle + work);
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned int, load_power_mw(device))
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj(device))
NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, device->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, device->power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, device->power_limit_mw)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetNumFans, unsigned int, 0)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                          unsigned int *minimum,
                                                          unsigned int *maximum)
{
    ENTER_DEVICE(device);
    REQUIRE(minimum && maximum);
    *minimum = device->power_limit_mw / 2;
    *maximum = device->power_limit_mw;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *temperature)
{
    ENTER_DEVICE(device);
    if (!temperature || (unsigned int) sensor >= NVML_TEMPERATURE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *temperature = load_temperature(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER_DEVICE(device);
    REQUIRE(temperature);
    REQUIRE_VERSION(temperature, nvmlTemperature_v1);
    if ((unsigned int) temperature->sensorType >= NVML_TEMPERATURE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int) load_temperature(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ENTER_DEVICE(device);
    REQUIRE(margin);
    REQUIRE_VERSION(margin, nvmlMarginTemperature_v1);
    margin->marginTemperature = MAXIMUM_TEMPERATURE - (int) load_temperature(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t threshold,
                                               unsigned int *temperature)
{
    static const unsigned int known[] = {
        [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = SHUTDOWN_TEMPERATURE,
        [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = SLOWDOWN_TEMPERATURE,
        [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = MEMORY_MAXIMUM,
        [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = MAXIMUM_TEMPERATURE,
    };

    ENTER_DEVICE(device);
    if (!temperature || (unsigned int) threshold >= NVML_TEMPERATURE_THRESHOLD_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((unsigned int) threshold >= sizeof(known) / sizeof(known[0]))
        return NVML_ERROR_NOT_SUPPORTED;
    *temperature = known[threshold];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned int sensor,
                                          nvmlGpuThermalSettings_t *settings)
{
    ENTER_DEVICE(device);
    REQUIRE(settings);
    if (sensor != 0 && sensor != NVML_THERMAL_TARGET_ALL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(settings, 0, sizeof(*settings));
    settings->count = 1;
    settings->sensor[0].controller = NVML_THERMAL_CONTROLLER_GPU_INTERNAL;
    settings->sensor[0].defaultMaxTemp = SHUTDOWN_TEMPERATURE;
    settings->sensor[0].currentTemp = (int) load_temperature(device);
    settings->sensor[0].target = NVML_THERMAL_TARGET_GPU;
    return NVML_SUCCESS;
}

/* The simulated device was never throttled. */
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t *time)
{
    struct timespec now;

    ENTER_DEVICE(device);
    if (!time || (unsigned int) policy >= NVML_PERF_POLICY_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    clock_gettime(CLOCK_REALTIME, &now);
    time->referenceTime =
        (unsigned long long) now.tv_sec * 1000000 + (unsigned long long) now.tv_nsec / 1000;
    time->violationTime = 0;
    return NVML_SUCCESS;
}
