/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c -- what it costs to allocate and to free. */
#include "calls.h"
#include "crowd.h"
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 4096, LIVE = 10000 };

void calls_begin(void)
{
    timer_calibrate();
    library_open_cuda();
    library_make_context();
}

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

void figure_pair(size_t count)
{
    struct samples samples = samples_make(count);

    calls_begin();
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

    calls_begin();
    fill(live);
    time_pairs(samples.values, count);
    samples_report_ticks("pair-live", &samples);
}

void figure_pair_any(size_t count)
{
    static CUdeviceptr live[LIVE];
    struct samples samples = samples_make(count);

    calls_begin();
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
    calls_begin();
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

    calls_begin();
    for (size_t i = 0; i < WARM_UP; i++)
        time_async_pair();
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_async_pair();
    samples_report_ticks("pair-async", &samples);
}

/* Where and how memory is created; the address that it is mapped to is reserved beforehand. */
static struct {
    CUmemAllocationProp properties;
    size_t bytes;
    CUdeviceptr address;
} physical;

static void prepare_physical(void)
{
    physical.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    physical.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    library_check("cuMemGetAllocationGranularity",
                  CALL(cuMemGetAllocationGranularity)(&physical.bytes, &physical.properties,
                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    library_check("cuMemAddressReserve",
                  CALL(cuMemAddressReserve)(&physical.address, physical.bytes, 0, 0, 0));
}

static uint64_t time_mapping(void)
{
    CUmemGenericAllocationHandle handle = 0;
    uint64_t began = timer_begin();
    CUresult created = CALL(cuMemCreate)(&handle, physical.bytes, &physical.properties, 0);
    CUresult mapped = CALL(cuMemMap)(physical.address, physical.bytes, 0, handle, 0);
    CUresult unmapped = CALL(cuMemUnmap)(physical.address, physical.bytes);
    CUresult released = CALL(cuMemRelease)(handle);
    uint64_t ticks = timer_end() - began;

    library_check("cuMemCreate", created);
    library_check("cuMemMap", mapped);
    library_check("cuMemUnmap", unmapped);
    library_check("cuMemRelease", released);
    return ticks;
}

void figure_mapping(size_t count)
{
    struct samples samples = samples_make(count);

    calls_begin();
    prepare_physical();
    for (size_t i = 0; i < WARM_UP; i++)
        time_mapping();
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_mapping();
    samples_report_ticks("mapping", &samples);
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

    calls_begin();
    allocate();
    library_check("cuMemGetInfo_v2", CALL(cuMemGetInfo_v2)(&available, &total));
    for (size_t i = 0; i < WARM_UP; i++)
        time_refusal(total);
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_refusal(total);
    samples_report_ticks("refusal", &samples);
}
