/* SPDX-License-Identifier: Apache-2.0 */
/* queries.c -- what it costs to ask: how much memory there is, who uses it, where a function is. */
#include "calls.h"
#include "crowd.h"
#include "figures.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *const lookup_names[] = {
#include "lookup_names.inc"
};

static uint64_t time_memory_info(void)
{
    size_t available;
    size_t total;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuMemGetInfo_v2)(&available, &total);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemGetInfo_v2", result);
    return ticks;
}

void figure_memory_info(size_t count)
{
    struct samples samples = samples_make(count);
    CUdeviceptr address;

    calls_begin();
    library_check("cuMemAlloc_v2", CALL(cuMemAlloc_v2)(&address, 4096));
    for (size_t i = 0; i < WARM_UP; i++)
        time_memory_info();
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_memory_info();
    samples_report_ticks("memory-info", &samples);
}

static uint64_t time_nvml_memory(nvmlDevice_t device)
{
    nvmlMemory_t memory;
    uint64_t began = timer_begin();
    nvmlReturn_t result = CALL(nvmlDeviceGetMemoryInfo)(device, &memory);
    uint64_t ticks = timer_end() - began;

    library_check("nvmlDeviceGetMemoryInfo", (int) result);
    return ticks;
}

void figure_nvml_memory(size_t count)
{
    struct samples samples = samples_make(count);
    nvmlDevice_t device;

    timer_calibrate();
    library_open_nvml();
    library_check("nvmlInit_v2", (int) CALL(nvmlInit_v2)());
    library_check("nvmlDeviceGetHandleByIndex_v2",
                  (int) CALL(nvmlDeviceGetHandleByIndex_v2)(0, &device));
    for (size_t i = 0; i < WARM_UP; i++)
        time_nvml_memory(device);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_nvml_memory(device);
    samples_report_ticks("nvml-memory", &samples);
}

static nvmlDevice_t crowd_device;
static struct samples list_samples;

static uint64_t time_process_list(void)
{
    nvmlProcessInfo_t processes[2 * CROWD];
    unsigned count = 2 * CROWD;
    uint64_t began = timer_begin();
    nvmlReturn_t result =
        CALL(nvmlDeviceGetComputeRunningProcesses_v3)(crowd_device, &count, processes);
    uint64_t ticks = timer_end() - began;

    library_check("nvmlDeviceGetComputeRunningProcesses_v3", (int) result);
    library_check("the number of processes less eight", (int) count - CROWD);
    return ticks;
}

/* The first of the crowd asks; the others only hold a context. */
static void prepare_processes(unsigned index)
{
    calls_begin();
    if (index != 0)
        return;
    library_open_nvml();
    library_check("nvmlInit_v2", (int) CALL(nvmlInit_v2)());
    library_check("nvmlDeviceGetHandleByIndex_v2",
                  (int) CALL(nvmlDeviceGetHandleByIndex_v2)(0, &crowd_device));
}

static void act_processes(unsigned index, uint64_t released_ns)
{
    (void) released_ns;
    if (index != 0)
        return;
    for (size_t i = 0; i < WARM_UP; i++)
        time_process_list();
    for (size_t i = 0; i < list_samples.capacity; i++)
        list_samples.values[i] = time_process_list();
}

void figure_process_list(size_t count)
{
    static const struct crowd_role role = {prepare_processes, act_processes, NULL};

    timer_calibrate();
    list_samples = samples_make(count);
    crowd_run(CROWD, &role);
    samples_report_ticks("process-list", &list_samples);
}

static uint64_t time_lookup(const char *name)
{
    CUdriverProcAddressQueryResult status;
    void *found;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuGetProcAddress_v2)(name, &found, CUDA_VERSION, 0, &status);
    uint64_t ticks = timer_end() - began;

    library_check("cuGetProcAddress_v2", result);
    return ticks;
}

void figure_lookup(size_t count)
{
    struct samples samples = samples_make(count);

    calls_begin();
    for (size_t i = 0; i < WARM_UP; i++)
        time_lookup(lookup_names[i % LENGTH(lookup_names)]);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_lookup(lookup_names[i % LENGTH(lookup_names)]);
    samples_report_ticks("lookup", &samples);
}
