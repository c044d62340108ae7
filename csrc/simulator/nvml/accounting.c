/* SPDX-License-Identifier: Apache-2.0 */
/* accounting.c -- NVML accounting of processes. It is always on, and drops a process when it ends.
 */
#include "lists.h"
#include "source.h"

#include <stdlib.h>

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    ENTER_DEVICE(device);
    REQUIRE(mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
    ENTER_DEVICE(device);
    REQUIRE(size);
    *size = 4000;
    return NVML_SUCCESS;
}

/* The processes of the device with their loads; malloc'ed arrays. */
static nvmlReturn_t read_all(nvmlDevice_t device, struct source_process **processes,
                             struct source_load **loads, size_t *count)
{
    *processes = calloc(SOURCE_PROCESSES, sizeof(**processes));
    *loads = calloc(SOURCE_PROCESSES, sizeof(**loads));
    if (!*processes || !*loads)
        return NVML_ERROR_MEMORY;
    *count = source_process_loads(device->index, *processes, *loads);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids)
{
    struct source_process *processes = NULL;
    struct source_load *loads = NULL;
    size_t found = 0;

    ENTER_DEVICE(device);
    REQUIRE(count);
    nvmlReturn_t result = read_all(device, &processes, &loads, &found);
    if (result == NVML_SUCCESS)
        result = nvml_fit(count, found, pids);
    for (size_t i = 0; result == NVML_SUCCESS && i < found; i++)
        pids[i] = processes[i].pid;
    free(processes);
    free(loads);
    return result;
}

/* The load is that of the last second; there is no older record. */
static nvmlReturn_t find(nvmlDevice_t device, unsigned int pid, struct source_process *process,
                         struct source_load *load)
{
    struct source_process *processes = NULL;
    struct source_load *loads = NULL;
    size_t found = 0;
    nvmlReturn_t result = read_all(device, &processes, &loads, &found);

    if (result == NVML_SUCCESS)
        result = NVML_ERROR_NOT_FOUND;
    for (size_t i = 0; result == NVML_ERROR_NOT_FOUND && i < found; i++) {
        if (processes[i].pid != pid)
            continue;
        *process = processes[i];
        *load = loads[i];
        result = NVML_SUCCESS;
    }
    free(processes);
    free(loads);
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats)
{
    struct source_process process;
    struct source_load load;

    ENTER_DEVICE(device);
    REQUIRE(stats);
    nvmlReturn_t result = find(device, pid, &process, &load);
    if (result == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_t) {
            .gpuUtilization = load.sm,
            .memoryUtilization = load.memory,
            .maxMemoryUsage = process.bytes,
            .isRunning = 1,
        };
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    struct source_process process;
    struct source_load load;

    ENTER_DEVICE(device);
    REQUIRE(stats);
    nvmlReturn_t result = find(device, stats->pid, &process, &load);
    if (result == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_v2_t) {
            .pid = process.pid,
            .isRunning = 1,
            .gpuUtilization = load.sm,
            .memoryUtilization = load.memory,
            .maxMemoryUsage = process.bytes,
            .sampleCount = 1,
            .sumGpuUtil = 100ULL * load.sm,
            .sumFbUtil = 100ULL * load.memory,
        };
    return result;
}
