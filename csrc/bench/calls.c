/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c -- the cost of single calls in a program that is running.
 *
 * Each figure warms up, then times every call by itself: p50 is the median of calls, and what
 * happens every few milliseconds (an interrupt, a look for dead processes) is in p99 and max.
 */
#include "crowd.h"
#include "figures.h"
#include "library.h"
#include "samples.h"
#include "timer.h"

#include <stdio.h>
#include <stdlib.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum { BLOCK = 4096, LIVE = 10000, CROWD = 8, WARM_UP = 2000 };

static const char *const names[] = {
#include "lookup_names.inc"
};

static CUdeviceptr allocate(void)
{
    CUdeviceptr address;

    library_check("cuMemAlloc_v2", CALL(cuMemAlloc_v2)(&address, BLOCK));
    return address;
}

/* The clock is stopped before results are looked at. */
static uint64_t time_pair(void)
{
    CUdeviceptr address = 0;
    uint64_t began = timer_begin();
    CUresult allocated = CALL(cuMemAlloc_v2)(&address, BLOCK);
    CUresult freed = CALL(cuMemFree_v2)(address);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemAlloc_v2", allocated);
    library_check("cuMemFree_v2", freed);
    return ticks;
}

static void time_pairs(uint64_t *values, size_t count)
{
    for (size_t i = 0; i < WARM_UP; i++)
        time_pair();
    for (size_t i = 0; i < count; i++)
        values[i] = time_pair();
}

static void begin(void)
{
    timer_calibrate();
    library_open_cuda();
    library_make_context();
}

void figure_pair(size_t count)
{
    struct samples samples = samples_make(count);

    begin();
    time_pairs(samples.values, count);
    samples_report_ticks("pair", &samples);
}

/* xorshift: which allocation goes must not be what a cache expects */
static uint64_t draw(void)
{
    static uint64_t state = UINT64_C(0x2545f4914f6cdd1d);

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t time_replacement(CUdeviceptr *live)
{
    CUdeviceptr *place = &live[draw() % LIVE];
    CUdeviceptr address = 0;
    uint64_t began = timer_begin();
    CUresult allocated = CALL(cuMemAlloc_v2)(&address, BLOCK);
    CUresult freed = CALL(cuMemFree_v2)(*place);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemAlloc_v2", allocated);
    library_check("cuMemFree_v2", freed);
    *place = address;
    return ticks;
}

static void fill(CUdeviceptr *live)
{
    for (size_t i = 0; i < LIVE; i++)
        live[i] = allocate();
}

void figure_pair_live(size_t count)
{
    static CUdeviceptr live[LIVE];
    struct samples samples = samples_make(count);

    begin();
    fill(live);
    time_pairs(samples.values, count);
    samples_report_ticks("pair-live", &samples);
}

void figure_pair_any(size_t count)
{
    static CUdeviceptr live[LIVE];
    struct samples samples = samples_make(count);

    begin();
    fill(live);
    for (size_t i = 0; i < WARM_UP; i++)
        time_replacement(live);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_replacement(live);
    samples_report_ticks("pair-any", &samples);
}

static struct samples crowd_samples;

static void prepare_pairs(unsigned index)
{
    (void) index;
    begin();
}

static void act_pairs(unsigned index, uint64_t released_ns)
{
    size_t share = crowd_samples.capacity / CROWD;

    (void) released_ns;
    time_pairs(crowd_samples.values + index * share, share);
}

static void go_on_with_pairs(void)
{
    for (int i = 0; i < 100; i++)
        time_pair();
}

void figure_pair_crowd(size_t count)
{
    static const struct crowd_role role = {prepare_pairs, act_pairs, go_on_with_pairs};

    timer_calibrate();
    crowd_samples = samples_make(count / CROWD * CROWD);
    crowd_run(CROWD, &role);
    samples_report_ticks("pair-crowd", &crowd_samples);
}

static uint64_t time_async_pair(void)
{
    CUdeviceptr address = 0;
    uint64_t began = timer_begin();
    CUresult allocated = CALL(cuMemAllocAsync)(&address, BLOCK, NULL);
    CUresult freed = CALL(cuMemFreeAsync)(address, NULL);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemAllocAsync", allocated);
    library_check("cuMemFreeAsync", freed);
    return ticks;
}

void figure_pair_async(size_t count)
{
    struct samples samples = samples_make(count);

    begin();
    for (size_t i = 0; i < WARM_UP; i++)
        time_async_pair();
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_async_pair();
    samples_report_ticks("pair-async", &samples);
}

static uint64_t time_refusal(size_t bytes)
{
    CUdeviceptr address = 0;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuMemAlloc_v2)(&address, bytes);
    uint64_t ticks = timer_end() - began;

    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "load: all the memory there is was asked for, and the answer is %d\n",
                (int) result);
        exit(1);
    }
    return ticks;
}

void figure_refusal(size_t count)
{
    struct samples samples = samples_make(count);
    size_t available;
    size_t total;

    begin();
    allocate();
    library_check("cuMemGetInfo_v2", CALL(cuMemGetInfo_v2)(&available, &total));
    for (size_t i = 0; i < WARM_UP; i++)
        time_refusal(total);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_refusal(total);
    samples_report_ticks("refusal", &samples);
}

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

    begin();
    allocate();
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
    begin();
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
    for (size_t i = 0; i < crowd_samples.capacity; i++)
        crowd_samples.values[i] = time_process_list();
}

void figure_process_list(size_t count)
{
    static const struct crowd_role role = {prepare_processes, act_processes, NULL};

    timer_calibrate();
    crowd_samples = samples_make(count);
    crowd_run(CROWD, &role);
    samples_report_ticks("process-list", &crowd_samples);
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

    begin();
    for (size_t i = 0; i < WARM_UP; i++)
        time_lookup(names[i % LENGTH(names)]);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_lookup(names[i % LENGTH(names)]);
    samples_report_ticks("lookup", &samples);
}
