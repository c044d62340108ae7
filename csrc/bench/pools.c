/* SPDX-License-Identifier: Apache-2.0 */
/* pools.c -- latency of freeing and allocating in a pool that fills the quota. */
#include "draw.h"
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 64, QUARTER = PIECES / 4 };

/* The kernel writes nothing, but takes as long as writing a piece at 3.35 TB/s. */
static const char image[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry sim_spin(.param .u64 ns) { ret; }\n";
static uint64_t kernel_ns = 10000;

static const size_t piece_bytes = (size_t) 32 << 20;

static CUfunction kernel;
static CUmemoryPool pool;
static CUdeviceptr pieces[PIECES];

static CUdeviceptr take_piece(void)
{
    CUdeviceptr address = 0;

    library_check("cuMemAllocFromPoolAsync",
                  CALL(cuMemAllocFromPoolAsync)(&address, piece_bytes, pool, NULL));
    return address;
}

/* Allocate the rest of the memory as linear memory, largest pieces first. */
static void fill_rest(void)
{
    for (size_t bytes = (size_t) 1 << 40; bytes >= (size_t) 2 << 20;) {
        CUdeviceptr address;
        CUresult result = CALL(cuMemAlloc_v2)(&address, bytes);

        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            bytes /= 2;
        else
            library_check("cuMemAlloc_v2", result);
    }
}

void pools_prepare_full(void)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    cuuint64_t all = UINT64_MAX;
    CUmodule module;

    call_open();
    library_check("cuModuleLoadData", CALL(cuModuleLoadData)(&module, image));
    library_check("cuModuleGetFunction", CALL(cuModuleGetFunction)(&kernel, module, "sim_spin"));
    library_check("cuMemPoolCreate", CALL(cuMemPoolCreate)(&pool, &properties));
    library_check("cuMemPoolSetAttribute",
                  CALL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    for (size_t i = 0; i < PIECES; i++)
        pieces[i] = take_piece();
    fill_rest();
}

static void check_all(const CUresult results[2 * QUARTER])
{
    for (size_t i = 0; i < 2 * QUARTER; i++)
        library_check(i < QUARTER ? "cuMemFreeAsync" : "cuMemAllocFromPoolAsync", results[i]);
}

static void replace_quarter(CUresult results[2 * QUARTER])
{
    size_t first = draw() % PIECES;

    for (size_t i = 0; i < QUARTER; i++)
        results[i] = CALL(cuMemFreeAsync)(pieces[(first + i) % PIECES], NULL);
    for (size_t i = 0; i < QUARTER; i++)
        results[QUARTER + i] =
            CALL(cuMemAllocFromPoolAsync)(&pieces[(first + i) % PIECES], piece_bytes, pool, NULL);
}

uint64_t pools_time_quarter(void)
{
    CUresult results[2 * QUARTER];
    uint64_t began = timer_begin();
    uint64_t ticks;

    replace_quarter(results);
    ticks = timer_end() - began;
    check_all(results);
    return ticks;
}

uint64_t pools_time_quarter_written(void)
{
    void *arguments[] = {&kernel_ns};
    CUresult results[2 * QUARTER];
    CUresult launched = CUDA_SUCCESS;
    uint64_t began = timer_begin();
    uint64_t ticks;

    replace_quarter(results);
    for (size_t i = 0; i < QUARTER && launched == CUDA_SUCCESS; i++)
        launched = CALL(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
    if (launched == CUDA_SUCCESS)
        launched = CALL(cuStreamSynchronize)(NULL);
    ticks = timer_end() - began;
    check_all(results);
    library_check("cuLaunchKernel, or waiting for it", launched);
    return ticks;
}
