/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c -- latency of allocating and freeing memory. */
#include "draw.h"
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 4096, LIVE = 10000 };

static CUdeviceptr allocate(void)
{
    CUdeviceptr address;

    library_check("cuMemAlloc_v2", CALL(cuMemAlloc_v2)(&address, BLOCK));
    return address;
}

/* The timer stops before results are checked. */
uint64_t calls_time_pair(void)
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

static CUdeviceptr live[LIVE];

void calls_prepare_live(void)
{
    call_open();
    for (size_t i = 0; i < LIVE; i++)
        live[i] = allocate();
}

uint64_t calls_time_replacement(void)
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

uint64_t calls_time_async_pair(void)
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

/* Properties of the created memory; the address it is mapped to is reserved beforehand. */
static struct {
    CUmemAllocationProp properties;
    size_t bytes;
    CUdeviceptr address;
} physical;

void calls_prepare_mapping(void)
{
    call_open();
    physical.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    physical.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    library_check("cuMemGetAllocationGranularity",
                  CALL(cuMemGetAllocationGranularity)(&physical.bytes, &physical.properties,
                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    library_check("cuMemAddressReserve",
                  CALL(cuMemAddressReserve)(&physical.address, physical.bytes, 0, 0, 0));
}

uint64_t calls_time_mapping(void)
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

static size_t everything;

void calls_prepare_refusal(void)
{
    size_t available;

    call_open();
    allocate();
    library_check("cuMemGetInfo_v2", CALL(cuMemGetInfo_v2)(&available, &everything));
}

uint64_t calls_time_refusal(void)
{
    CUdeviceptr address = 0;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuMemAlloc_v2)(&address, everything);
    uint64_t ticks = timer_end() - began;

    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "load: all the memory there is was asked for, and the answer is %d\n",
                (int) result);
        exit(1);
    }
    return ticks;
}
