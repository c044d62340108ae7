/* SPDX-License-Identifier: Apache-2.0 */
/* load.c -- filters the driver's per-process utilization to our processes, and scales it; see
 * load.h.
 *
 * The driver knows the utilization of a device, and of each process by its pid. The former includes
 * all processes, so ours is the sum of the latter.
 */
#include "shim/nvml/load.h"
#include "core/cleanup.h"
#include "shim/driver.h"
#include "shim/nvml/process.h"
#include "shim/shim.h"

#include <stdlib.h>

#define WHOLE     100 /* vcore of a device */
#define SECOND_US UINT64_C(1000000)
#define TRIES     4 /* for a list that grows while it is read */

/* Scale *amount* to the share; at most *most*, the amount of a whole device. */
static uint64_t part_of_share(unsigned index, uint64_t amount, uint64_t most)
{
    uint32_t vcore;

    shim_watch_limits();
    vcore = __atomic_load_n(&shim.vcore[index], __ATOMIC_RELAXED);
    amount = vcore ? amount * WHOLE / vcore : amount;
    return amount < most ? amount : most;
}

unsigned load_of_share(unsigned index, unsigned percent)
{
    return (unsigned) part_of_share(index, percent, WHOLE);
}

uint64_t load_sum_of_share(unsigned index, uint64_t sum, unsigned count)
{
    return part_of_share(index, sum, (uint64_t) count * WHOLE);
}

static nvmlReturn_t read_new_form(nvmlDevice_t device, unsigned long long last_seen,
                                  nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count)
{
    nvmlProcessesUtilizationInfo_t info = {.version = nvmlProcessesUtilizationInfo_v1,
                                           .lastSeenTimeStamp = last_seen};
    nvmlReturn_t result = driver.nvmlDeviceGetProcessesUtilizationInfo(device, &info);

    for (int tries = 0; result == NVML_ERROR_INSUFFICIENT_SIZE && tries < TRIES; tries++) {
        free(*samples);
        *samples = info.procUtilArray = calloc(info.processSamplesCount, sizeof(**samples));
        if (!*samples)
            return NVML_ERROR_MEMORY;
        result = driver.nvmlDeviceGetProcessesUtilizationInfo(device, &info);
    }
    *count = *samples ? info.processSamplesCount : 0;
    return result;
}

/* For drivers before 550; it has two engines less. */
static nvmlReturn_t read_old_form(nvmlDevice_t device, unsigned long long last_seen,
                                  nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count)
{
    nvmlProcessUtilizationSample_t *old cleanup_free = NULL;
    nvmlReturn_t result = driver.nvmlDeviceGetProcessUtilization(device, NULL, count, last_seen);

    for (int tries = 0; result == NVML_ERROR_INSUFFICIENT_SIZE && tries < TRIES; tries++) {
        free(old);
        old = calloc(*count, sizeof(*old));
        if (!old)
            return NVML_ERROR_MEMORY;
        result = driver.nvmlDeviceGetProcessUtilization(device, old, count, last_seen);
    }
    if (result != NVML_SUCCESS || !old)
        return result;
    free(*samples);
    *samples = calloc(*count, sizeof(**samples));
    if (!*samples)
        return NVML_ERROR_MEMORY;
    for (unsigned i = 0; i < *count; i++)
        (*samples)[i] = (nvmlProcessUtilizationInfo_v1_t) {.timeStamp = old[i].timeStamp,
                                                           .pid = old[i].pid,
                                                           .smUtil = old[i].smUtil,
                                                           .memUtil = old[i].memUtil,
                                                           .encUtil = old[i].encUtil,
                                                           .decUtil = old[i].decUtil};
    return NVML_SUCCESS;
}

static void scale(nvmlProcessUtilizationInfo_v1_t *sample, unsigned index)
{
    sample->smUtil = load_of_share(index, sample->smUtil);
    sample->memUtil = load_of_share(index, sample->memUtil);
    sample->encUtil = load_of_share(index, sample->encUtil);
    sample->decUtil = load_of_share(index, sample->decUtil);
    sample->jpgUtil = load_of_share(index, sample->jpgUtil);
    sample->ofaUtil = load_of_share(index, sample->ofaUtil);
}

static nvmlReturn_t read_ours(nvmlDevice_t device, unsigned long long last_seen,
                              nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count)
{
    nvmlReturn_t result;
    unsigned all = 0;

    *samples = NULL;
    *count = 0;
    result = read_new_form(device, last_seen, samples, &all);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND)
        result = read_old_form(device, last_seen, samples, &all);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++)
        if (nvml_is_ours((*samples)[i].pid))
            (*samples)[(*count)++] = (*samples)[i];
    return result;
}

nvmlReturn_t load_of_processes(nvmlDevice_t device, unsigned index, unsigned long long last_seen,
                               nvmlProcessUtilizationInfo_v1_t **samples, unsigned *count)
{
    nvmlReturn_t result = read_ours(device, last_seen, samples, count);

    for (unsigned i = 0; i < *count; i++)
        scale(&(*samples)[i], index);
    return result == NVML_SUCCESS && !*count ? NVML_ERROR_NOT_FOUND : result;
}

/* If a process has several samples, the newest counts. */
static int is_newest(const nvmlProcessUtilizationInfo_v1_t *samples, unsigned count, unsigned i)
{
    for (unsigned j = 0; j < count; j++)
        if (samples[j].pid == samples[i].pid &&
            (samples[j].timeStamp > samples[i].timeStamp ||
             (samples[j].timeStamp == samples[i].timeStamp && j > i)))
            return 0;
    return 1;
}

nvmlProcessUtilizationInfo_v1_t load_now(nvmlDevice_t device, unsigned index)
{
    uint64_t now_us = clock_now_ns(CLOCK_REALTIME) / 1000;
    nvmlProcessUtilizationInfo_v1_t *samples cleanup_free = NULL;
    nvmlProcessUtilizationInfo_v1_t sum = {0};
    unsigned count;

    read_ours(device, now_us - SECOND_US, &samples, &count);
    for (unsigned i = 0; i < count; i++) {
        if (!is_newest(samples, count, i))
            continue;
        sum.smUtil += samples[i].smUtil;
        sum.memUtil += samples[i].memUtil;
        sum.encUtil += samples[i].encUtil;
        sum.decUtil += samples[i].decUtil;
        sum.jpgUtil += samples[i].jpgUtil;
        sum.ofaUtil += samples[i].ofaUtil;
    }
    scale(&sum, index);
    return sum;
}
