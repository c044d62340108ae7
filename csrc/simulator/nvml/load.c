/* SPDX-License-Identifier: Apache-2.0 */
/* load.c -- utilisation of a device, now and sampled. */
#include "load.h"

#include "source.h"

#define IDLE_TEMPERATURE 34
#define FULL_TEMPERATURE 68
#define IDLE_CLOCK_MHZ   345

unsigned int load_sm(nvmlDevice_t device)
{
    return source_device_load(device->index).sm;
}

unsigned int load_temperature(nvmlDevice_t device)
{
    return IDLE_TEMPERATURE + (FULL_TEMPERATURE - IDLE_TEMPERATURE) * load_sm(device) / 100;
}

/* A tenth of the limit when idle, nine tenths under full load. */
unsigned int load_power_mw(nvmlDevice_t device)
{
    unsigned int tenth = device->power_limit_mw / 10;

    return tenth + 8 * tenth / 100 * load_sm(device);
}

unsigned int load_sm_clock_mhz(nvmlDevice_t device)
{
    if (load_sm(device) || device->sm_clock_mhz < IDLE_CLOCK_MHZ)
        return device->sm_clock_mhz;
    return IDLE_CLOCK_MHZ;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER_DEVICE(device);
    REQUIRE(utilization);
    if (source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    struct source_load load = source_device_load(device->index);
    utilization->gpu = load.sm;
    utilization->memory = load.memory;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    ENTER_DEVICE(device);
    REQUIRE(info);
    struct source_load load = source_device_load(device->index);
    *info = (nvmlGpuDynamicPstatesInfo_t) {
        .utilization = {{.bIsPresent = 1, .percentage = load.sm},
                        {.bIsPresent = 1, .percentage = load.memory}},
    };
    return NVML_SUCCESS;
}

/* The simulated device has no engines for video. */
#define IDLE_ENGINE(name)                                                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us) \
    {                                                                                          \
        ENTER_DEVICE(device);                                                                  \
        REQUIRE(utilization && period_us);                                                     \
        if (source_mig(device->index))                                                         \
            return NVML_ERROR_NOT_SUPPORTED;                                                   \
        *utilization = 0;                                                                      \
        *period_us = 167000;                                                                   \
        return NVML_SUCCESS;                                                                   \
    }

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                       unsigned int *fps, unsigned int *latency)
{
    ENTER_DEVICE(device);
    REQUIRE(sessions && fps && latency);
    *sessions = *fps = *latency = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count,
                                          nvmlEncoderSessionInfo_t *sessions)
{
    (void) sessions;
    ENTER_DEVICE(device);
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
    ENTER_DEVICE(device);
    REQUIRE(stats);
    *stats = (nvmlFBCStats_t) {0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count,
                                      nvmlFBCSessionInfo_t *sessions)
{
    (void) sessions;
    ENTER_DEVICE(device);
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t sample_value(nvmlDevice_t device, nvmlSamplingType_t type,
                                 const struct source_load *load, unsigned int *value)
{
    switch ((int) type) {
    case NVML_TOTAL_POWER_SAMPLES:
        *value = device->power_limit_mw / 1000 * (100 + 8 * load->sm);
        return NVML_SUCCESS;
    case NVML_GPU_UTILIZATION_SAMPLES:
        *value = load->sm;
        return NVML_SUCCESS;
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        *value = load->memory;
        return NVML_SUCCESS;
    case NVML_ENC_UTILIZATION_SAMPLES:
    case NVML_DEC_UTILIZATION_SAMPLES:
        *value = 0;
        return NVML_SUCCESS;
    case NVML_PROCESSOR_CLK_SAMPLES:
        *value = device->sm_clock_mhz;
        return NVML_SUCCESS;
    case NVML_MEMORY_CLK_SAMPLES:
        *value = device->memory_clock_mhz;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Without a buffer returns the maximum number of samples; else the samples after last_seen. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    struct source_load loads[LOAD_SAMPLES];
    unsigned int given = 0;
    unsigned int value;

    ENTER_DEVICE(device);
    REQUIRE(value_type && count);
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples) {
        *count = LOAD_SAMPLES;
        return sample_value(device, type, &(struct source_load) {0}, &value);
    }
    size_t found = source_device_loads(device->index, loads, LOAD_SAMPLES);
    for (size_t i = 0; i < found && given < *count; i++) {
        if (loads[i].time_us <= last_seen)
            continue;
        nvmlReturn_t result = sample_value(device, type, &loads[i], &value);
        if (result != NVML_SUCCESS)
            return result;
        samples[given++] = (nvmlSample_t) {
            .timeStamp = loads[i].time_us,
            .sampleValue.uiVal = value,
        };
    }
    *count = given;
    return given ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
