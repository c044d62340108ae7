/* SPDX-License-Identifier: Apache-2.0 */
/* utilization.c -- hooks of NVML's utilization queries, which report only our processes.
 *
 * The driver is called first, so that unsupported queries and invalid arguments get its own error;
 * then its figures, which cover all processes, are replaced by ours.
 */
#include "core/cleanup.h"
#include "shim/driver.h"
#include "shim/nvml/device.h"
#include "shim/nvml/load.h"
#include "shim/nvml/process.h"

#include <stdlib.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlProcessUtilizationInfo_v1_t load;
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetUtilizationRates(device, utilization);
    if (result != NVML_SUCCESS)
        return result;
    load = load_now(device, index);
    *utilization = (nvmlUtilization_t) {.gpu = load.smUtil, .memory = load.memUtil};
    return NVML_SUCCESS;
}

#define ENGINE(name, field)                                           \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *utilization, \
                      unsigned int *samplingPeriodUs)                 \
    {                                                                 \
        nvmlReturn_t result;                                          \
        unsigned index;                                               \
                                                                      \
        ENTER_DEVICE(device, index);                                  \
        result = driver.name(device, utilization, samplingPeriodUs);  \
        if (result == NVML_SUCCESS)                                   \
            *utilization = load_now(device, index).field;             \
        return result;                                                \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, encUtil)
ENGINE(nvmlDeviceGetDecoderUtilization, decUtil)
ENGINE(nvmlDeviceGetJpgUtilization, jpgUtil)
ENGINE(nvmlDeviceGetOfaUtilization, ofaUtil)

/* Utilization domains, in the order of NVML's numbers. */
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device,
                                             nvmlGpuDynamicPstatesInfo_t *pDynamicPstatesInfo)
{
    enum { GRAPHICS, FRAME_BUFFER, VIDEO };
    nvmlProcessUtilizationInfo_v1_t load;
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetDynamicPstatesInfo(device, pDynamicPstatesInfo);
    if (result != NVML_SUCCESS)
        return result;
    load = load_now(device, index);
    for (int domain = 0; domain < NVML_MAX_GPU_UTILIZATIONS; domain++)
        pDynamicPstatesInfo->utilization[domain].percentage = 0; /* bus: not known by process */
    pDynamicPstatesInfo->utilization[GRAPHICS].percentage = load.smUtil;
    pDynamicPstatesInfo->utilization[FRAME_BUFFER].percentage = load.memUtil;
    pDynamicPstatesInfo->utilization[VIDEO].percentage =
        load.encUtil > load.decUtil ? load.encUtil : load.decUtil;
    return NVML_SUCCESS;
}

/* Read our utilization if this type of sample is one. */
static int read_sampled_load(nvmlDevice_t device, unsigned index, nvmlSamplingType_t type,
                             unsigned *percent)
{
    nvmlProcessUtilizationInfo_v1_t load;

    if (type < NVML_GPU_UTILIZATION_SAMPLES ||
        (type > NVML_DEC_UTILIZATION_SAMPLES && type != NVML_JPG_UTILIZATION_SAMPLES &&
         type != NVML_OFA_UTILIZATION_SAMPLES))
        return 0;
    load = load_now(device, index);
    *percent = type == NVML_GPU_UTILIZATION_SAMPLES      ? load.smUtil
               : type == NVML_MEMORY_UTILIZATION_SAMPLES ? load.memUtil
               : type == NVML_ENC_UTILIZATION_SAMPLES    ? load.encUtil
               : type == NVML_DEC_UTILIZATION_SAMPLES    ? load.decUtil
               : type == NVML_JPG_UTILIZATION_SAMPLES    ? load.jpgUtil
                                                         : load.ofaUtil;
    return 1;
}

static nvmlValue_t value_of(unsigned number, nvmlValueType_t type)
{
    nvmlValue_t value;

    memset(&value, 0, sizeof(value));
    if (type == NVML_VALUE_TYPE_DOUBLE)
        value.dVal = number;
    else /* integers of all widths begin alike */
        value.ullVal = number;
    return value;
}

/* The driver keeps no history by process, so each of its samples gets our present utilization. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long lastSeenTimeStamp,
                                  nvmlValueType_t *sampleValType, unsigned int *sampleCount,
                                  nvmlSample_t *samples)
{
    nvmlReturn_t result;
    unsigned percent;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetSamples(device, type, lastSeenTimeStamp, sampleValType,
                                         sampleCount, samples);
    if (result != NVML_SUCCESS || !samples || !read_sampled_load(device, index, type, &percent))
        return result;
    for (unsigned i = 0; i < *sampleCount; i++)
        samples[i].sampleValue = value_of(percent, *sampleValType);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount,
                                             unsigned long long lastSeenTimeStamp)
{
    nvmlProcessUtilizationInfo_v1_t *ours cleanup_free = NULL;
    nvmlReturn_t result;
    unsigned count;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!processSamplesCount)
        return driver.nvmlDeviceGetProcessUtilization(device, NULL, NULL, lastSeenTimeStamp);
    result = load_of_processes(device, index, lastSeenTimeStamp, &ours, &count);
    if (result == NVML_SUCCESS)
        result = nvml_fit(processSamplesCount, count, utilization);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        utilization[i] = (nvmlProcessUtilizationSample_t) {.pid = ours[i].pid,
                                                           .timeStamp = ours[i].timeStamp,
                                                           .smUtil = ours[i].smUtil,
                                                           .memUtil = ours[i].memUtil,
                                                           .encUtil = ours[i].encUtil,
                                                           .decUtil = ours[i].decUtil};
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    nvmlProcessesUtilizationInfo_t *info = procesesUtilInfo;
    nvmlProcessUtilizationInfo_v1_t *ours cleanup_free = NULL;
    nvmlReturn_t result;
    unsigned count;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!info)
        return driver.nvmlDeviceGetProcessesUtilizationInfo(device, info);
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = load_of_processes(device, index, info->lastSeenTimeStamp, &ours, &count);
    if (result == NVML_SUCCESS)
        result = nvml_fit(&info->processSamplesCount, count, info->procUtilArray);
    if (result == NVML_SUCCESS)
        memcpy(info->procUtilArray, ours, count * sizeof(*ours));
    return result;
}

/* Counters of traffic, and of stalls by it, that add up all processes. */
static int tells_of_others(unsigned field)
{
    static const struct {
        unsigned first;
        unsigned last;
    } ranges[] = {
        {NVML_FI_DEV_NVLINK_BANDWIDTH_C0_L0, NVML_FI_DEV_NVLINK_BANDWIDTH_C1_TOTAL},
        {NVML_FI_DEV_NVLINK_BANDWIDTH_C0_L6, NVML_FI_DEV_NVLINK_BANDWIDTH_C1_L11},
        {NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX},
        {NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES},
        {NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES},
        {NVML_FI_DEV_NVLINK_PLR_XMIT_BLOCKS, NVML_FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS},
        {NVML_FI_DEV_MMA_STALL_PERCENT, NVML_FI_DEV_MMA_STALL_PERCENT},
    };

    for (unsigned i = 0; i < ARRAY_SIZE(ranges); i++)
        if (field >= ranges[i].first && field <= ranges[i].last)
            return 1;
    return 0;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                      nvmlFieldValue_t *values)
{
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetFieldValues(device, valuesCount, values);
    for (int i = 0; result == NVML_SUCCESS && i < valuesCount; i++) {
        if (!tells_of_others(values[i].fieldId))
            continue;
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        values[i].value.ullVal = 0; /* nvidia-smi reads it all the same */
    }
    return result;
}
