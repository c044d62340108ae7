/* SPDX-License-Identifier: Apache-2.0 */
/* process.c -- processes on a device, their memory and utilization.
 *
 * A process is on the compute list of a device when it has a context there, or on the list of MPS
 * if it is a client of a server; the server is on the compute list. There is no graphics on a
 * simulated device: that list is empty instead of an error, because an error makes programs
 * discard the other lists, too.
 */
#include "lists.h"

#include "source.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

nvmlReturn_t nvml_fit(unsigned int *count, size_t needed, const void *array)
{
    if (*count < needed || (needed && !array)) {
        *count = (unsigned int) needed;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *count = (unsigned int) needed;
    return NVML_SUCCESS;
}

/* Keep the processes that belong on the list; returns how many. */
static size_t keep_listed(struct source_process *processes, size_t count, enum nvml_list kind)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        enum nvml_list its = processes[i].is_mps_client ? NVML_LIST_MPS : NVML_LIST_COMPUTE;

        if (kind == NVML_LIST_ALL || kind == its)
            processes[kept++] = processes[i];
    }
    return kept;
}

nvmlReturn_t nvml_list(nvmlDevice_t device, enum nvml_list kind, unsigned int *count, void *entries,
                       nvml_describe *describe)
{
    REQUIRE(count);
    if (source_mig_is_hidden(device->index) || (source_mig(device->index) && geteuid() != 0))
        return NVML_ERROR_NO_PERMISSION; /* the instances may be other users' */
    struct source_process *found = calloc(SOURCE_PROCESSES, sizeof(*found));
    if (!found)
        return NVML_ERROR_MEMORY;
    size_t needed = keep_listed(found, source_processes(device->index, found), kind);
    nvmlReturn_t result = nvml_fit(count, needed, entries);
    for (size_t i = 0; result == NVML_SUCCESS && i < needed; i++)
        describe(entries, i, &found[i]);
    free(found);
    return result;
}

static void describe_v1(void *entries, size_t index, const struct source_process *process)
{
    ((nvmlProcessInfo_v1_t *) entries)[index] = (nvmlProcessInfo_v1_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
    };
}

static void describe_v2(void *entries, size_t index, const struct source_process *process)
{
    ((nvmlProcessInfo_v2_t *) entries)[index] = (nvmlProcessInfo_v2_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = process->gpu_instance,
        .computeInstanceId = process->compute_instance,
    };
}

void nvml_describe_detail(nvmlProcessDetail_v1_t *detail, const struct source_process *process)
{
    *detail = (nvmlProcessDetail_v1_t) {
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = process->gpu_instance,
        .computeInstanceId = process->compute_instance,
    };
}

static void describe_in_list(void *entries, size_t index, const struct source_process *process)
{
    nvml_describe_detail(&((nvmlProcessDetail_v1_t *) entries)[index], process);
}

/* The three lists, each in its three versions: the first has entries of 16 bytes. */
#define LISTS(name, kind)                                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)      \
    {                                                                                             \
        ENTER_ANY(device);                                                                        \
        return nvml_list(device, kind, count, infos, describe_v1);                                \
    }                                                                                             \
    nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) \
    {                                                                                             \
        ENTER_ANY(device);                                                                        \
        return nvml_list(device, kind, count, infos, describe_v2);                                \
    }                                                                                             \
    nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)    \
    {                                                                                             \
        ENTER_ANY(device);                                                                        \
        return nvml_list(device, kind, count, infos, describe_v2);                                \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses, NVML_LIST_COMPUTE)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, NVML_LIST_GRAPHICS)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVML_LIST_MPS)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list)
{
    ENTER_ANY(device);
    REQUIRE(list);
    REQUIRE_VERSION(list, nvmlProcessDetailList_v1);
    if (list->mode > 3) /* compute, graphics, MPS, all */
        return NVML_ERROR_INVALID_ARGUMENT;
    static const enum nvml_list kinds[] = {NVML_LIST_COMPUTE, NVML_LIST_GRAPHICS, NVML_LIST_MPS,
                                           NVML_LIST_ALL};
    return nvml_list(device, kinds[list->mode], &list->numProcArrayEntries, list->procArray,
                     describe_in_list);
}

/* Loads of the processes that had any since lastSeen: their number, and malloc'ed arrays. */
static nvmlReturn_t recent(nvmlDevice_t device, uint64_t last_seen,
                           struct source_process **processes, struct source_load **loads,
                           size_t *count)
{
    size_t kept = 0;

    *processes = calloc(SOURCE_PROCESSES, sizeof(**processes));
    *loads = calloc(SOURCE_PROCESSES, sizeof(**loads));
    if (!*processes || !*loads)
        return NVML_ERROR_MEMORY;
    size_t all = source_process_loads(device->index, *processes, *loads);
    for (size_t i = 0; i < all; i++) {
        if ((*loads)[i].time_us <= last_seen)
            continue;
        (*processes)[kept] = (*processes)[i];
        (*loads)[kept++] = (*loads)[i];
    }
    *count = kept;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    struct source_process *processes = NULL;
    struct source_load *loads = NULL;
    size_t found = 0;

    ENTER_DEVICE(device);
    REQUIRE(count);
    if (source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = recent(device, last_seen, &processes, &loads, &found);
    if (result == NVML_SUCCESS && !found)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        result = nvml_fit(count, found, samples);
    for (size_t i = 0; result == NVML_SUCCESS && i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t) {
            .pid = processes[i].pid,
            .timeStamp = loads[i].time_us,
            .smUtil = loads[i].sm,
            .memUtil = loads[i].memory,
        };
    free(processes);
    free(loads);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info)
{
    struct source_process *processes = NULL;
    struct source_load *loads = NULL;
    size_t found = 0;

    ENTER_DEVICE(device);
    REQUIRE(info);
    REQUIRE_VERSION(info, nvmlProcessesUtilizationInfo_v1);
    if (source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = recent(device, info->lastSeenTimeStamp, &processes, &loads, &found);
    if (result == NVML_SUCCESS && !found)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        result = nvml_fit(&info->processSamplesCount, found, info->procUtilArray);
    for (size_t i = 0; result == NVML_SUCCESS && i < found; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t) {
            .timeStamp = loads[i].time_us,
            .pid = processes[i].pid,
            .smUtil = loads[i].sm,
            .memUtil = loads[i].memory,
        };
    free(processes);
    free(loads);
    return result;
}
