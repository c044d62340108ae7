/* SPDX-License-Identifier: Apache-2.0 */
/* session.c -- hooks of per-process accounting and video engine sessions, limited to our processes.
 *
 * Averages over all sessions become averages over ours.
 */
#include "core/cleanup.h"
#include "shim/driver.h"
#include "shim/nvml/device.h"
#include "shim/nvml/load.h"
#include "shim/nvml/process.h"

#include <stdlib.h>
#include <string.h>

/* A list that the driver returns as a whole: the function to read it, and the pid's offset. */
struct list {
    nvmlReturn_t (*read)(nvmlDevice_t device, unsigned *count, void *entries);
    size_t stride;
    size_t pid_at;
};

static nvmlReturn_t read_pids(nvmlDevice_t device, unsigned *count, void *entries)
{
    return driver.nvmlDeviceGetAccountingPids(device, count, entries);
}

static nvmlReturn_t read_encoder(nvmlDevice_t device, unsigned *count, void *entries)
{
    return driver.nvmlDeviceGetEncoderSessions(device, count, entries);
}

static nvmlReturn_t read_capture(nvmlDevice_t device, unsigned *count, void *entries)
{
    return driver.nvmlDeviceGetFBCSessions(device, count, entries);
}

static const struct list pids = {read_pids, sizeof(unsigned), 0};
static const struct list encoder = {read_encoder, sizeof(nvmlEncoderSessionInfo_t),
                                    offsetof(nvmlEncoderSessionInfo_t, pid)};
static const struct list capture = {read_capture, sizeof(nvmlFBCSessionInfo_t),
                                    offsetof(nvmlFBCSessionInfo_t, pid)};

static int entry_is_ours(const struct list *list, const char *entry)
{
    unsigned pid;

    memcpy(&pid, entry + list->pid_at, sizeof(pid));
    return nvml_is_ours(pid);
}

/* Read our entries of a list; the caller frees *entries. */
static nvmlReturn_t read_ours(const struct list *list, nvmlDevice_t device, void **entries,
                              unsigned *ours)
{
    unsigned all = 0;
    nvmlReturn_t result = list->read(device, &all, NULL);
    char *found;

    *ours = 0;
    if ((result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) || !all)
        return result;
    found = *entries = calloc(all, list->stride);
    if (!found)
        return NVML_ERROR_MEMORY;
    result = list->read(device, &all, found);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++)
        if (entry_is_ours(list, found + i * list->stride))
            memmove(found + (*ours)++ * list->stride, found + i * list->stride, list->stride);
    return result;
}

static nvmlReturn_t give_ours(const struct list *list, nvmlDevice_t device, unsigned *count,
                              void *entries)
{
    void *found cleanup_free = NULL;
    nvmlReturn_t result;
    unsigned ours;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (!count)
        return list->read(device, NULL, NULL);
    result = read_ours(list, device, &found, &ours);
    if (result == NVML_SUCCESS)
        result = nvml_fit(count, ours, entries);
    if (result == NVML_SUCCESS && ours)
        memcpy(entries, found, ours * list->stride);
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *found)
{
    return give_ours(&pids, device, count, found);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *sessionCount,
                                          nvmlEncoderSessionInfo_t *sessionInfos)
{
    return give_ours(&encoder, device, sessionCount, sessionInfos);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *sessionCount,
                                      nvmlFBCSessionInfo_t *sessionInfo)
{
    return give_ours(&capture, device, sessionCount, sessionInfo);
}

/* Scale a utilization that may be NVML_VALUE_NOT_AVAILABLE. */
static unsigned scale_known(unsigned index, unsigned percent)
{
    return percent <= 100 ? load_of_share(index, percent) : percent;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats)
{
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (stats && !nvml_is_ours(pid))
        return NVML_ERROR_NOT_FOUND;
    result = driver.nvmlDeviceGetAccountingStats(device, pid, stats);
    if (result != NVML_SUCCESS)
        return result;
    stats->gpuUtilization = scale_known(index, stats->gpuUtilization);
    stats->memoryUtilization = scale_known(index, stats->memoryUtilization);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    nvmlReturn_t result;
    unsigned index;

    ENTER_DEVICE(device, index);
    if (stats && !nvml_is_ours(stats->pid))
        return NVML_ERROR_NOT_FOUND;
    result = driver.nvmlDeviceGetAccountingStats_v2(device, stats);
    if (result != NVML_SUCCESS)
        return result;
    stats->gpuUtilization = scale_known(index, stats->gpuUtilization);
    stats->memoryUtilization = scale_known(index, stats->memoryUtilization);
    /* These are sums of hundredths of a percent. */
    stats->sumGpuUtil = load_sum_of_share(index, stats->sumGpuUtil, 100 * stats->sampleCount);
    stats->sumFbUtil = load_sum_of_share(index, stats->sumFbUtil, 100 * stats->sampleCount);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessionCount,
                                       unsigned int *averageFps, unsigned int *averageLatency)
{
    void *found cleanup_free = NULL;
    const nvmlEncoderSessionInfo_t *sessions;
    nvmlReturn_t result;
    unsigned ours;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetEncoderStats(device, sessionCount, averageFps, averageLatency);
    if (result != NVML_SUCCESS)
        return result;
    *sessionCount = *averageFps = *averageLatency = 0;
    read_ours(&encoder, device, &found, &ours);
    sessions = found;
    for (unsigned i = 0; i < ours; i++) {
        *averageFps += sessions[i].averageFps / ours;
        *averageLatency += sessions[i].averageLatency / ours;
    }
    *sessionCount = ours;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *fbcStats)
{
    void *found cleanup_free = NULL;
    const nvmlFBCSessionInfo_t *sessions;
    nvmlReturn_t result;
    unsigned ours;
    unsigned index;

    ENTER_DEVICE(device, index);
    result = driver.nvmlDeviceGetFBCStats(device, fbcStats);
    if (result != NVML_SUCCESS)
        return result;
    *fbcStats = (nvmlFBCStats_t) {0};
    read_ours(&capture, device, &found, &ours);
    sessions = found;
    for (unsigned i = 0; i < ours; i++) {
        fbcStats->averageFPS += sessions[i].averageFPS / ours;
        fbcStats->averageLatency += sessions[i].averageLatency / ours;
    }
    fbcStats->sessionsCount = ours;
    return NVML_SUCCESS;
}
