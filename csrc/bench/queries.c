/* SPDX-License-Identifier: Apache-2.0 */
/* queries.c -- latency of queries: memory info, process lists, function look-ups. */
#include "figures.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *const lookup_names[] = {
#include "lookup_names.inc"
};

uint64_t queries_time_memory_info(void)
{
    size_t available;
    size_t total;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuMemGetInfo_v2)(&available, &total);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemGetInfo_v2", result);
    return ticks;
}

void queries_prepare_memory_info(void)
{
    CUdeviceptr address;

    call_open();
    library_check("cuMemAlloc_v2", CALL(cuMemAlloc_v2)(&address, 4096));
}

static nvmlDevice_t device;

void queries_prepare_nvml(void)
{
    library_open_nvml();
    library_check("nvmlInit_v2", (int) CALL(nvmlInit_v2)());
    library_check("nvmlDeviceGetHandleByIndex_v2",
                  (int) CALL(nvmlDeviceGetHandleByIndex_v2)(0, &device));
}

uint64_t queries_time_nvml_memory(void)
{
    nvmlMemory_t memory;
    uint64_t began = timer_begin();
    nvmlReturn_t result = CALL(nvmlDeviceGetMemoryInfo)(device, &memory);
    uint64_t ticks = timer_end() - began;

    library_check("nvmlDeviceGetMemoryInfo", (int) result);
    return ticks;
}

void queries_prepare_process_list(void)
{
    call_open();
    queries_prepare_nvml();
}

uint64_t queries_time_process_list(void)
{
    nvmlProcessInfo_t processes[2 * CROWD];
    unsigned count = 2 * CROWD;
    uint64_t began = timer_begin();
    nvmlReturn_t result = CALL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, processes);
    uint64_t ticks = timer_end() - began;

    library_check("nvmlDeviceGetComputeRunningProcesses_v3", (int) result);
    library_check("the number of processes less eight", (int) count - CROWD);
    return ticks;
}

uint64_t queries_time_lookup(void)
{
    static size_t turn;
    const char *name = lookup_names[turn++ % LENGTH(lookup_names)];
    CUdriverProcAddressQueryResult status;
    void *found;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuGetProcAddress_v2)(name, &found, CUDA_VERSION, 0, &status);
    uint64_t ticks = timer_end() - began;

    library_check("cuGetProcAddress_v2", result);
    return ticks;
}
