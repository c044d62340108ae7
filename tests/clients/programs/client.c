/* SPDX-License-Identifier: Apache-2.0 */
/* client.c -- an ordinary CUDA program that reports its memory, computes, and allocates to the end.
 *
 * Each finding is one line, NAME VALUE. It knows nothing of quotas: it allocates until a call is
 * refused, and prints how much it got. With WITH_NVML it queries NVML too, in the same process.
 */
#include "client.h"

#ifdef WITH_NVML
#include <nvml.h>
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BYTES = 3 << 20,
    WORDS = 1000,
    STEP = 64 << 20,
    MOST_STEPS = 4096,
};

static const char kernels[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sim_fill(.param .u64 at, .param .u32 value, .param .u64 count) { ret; }\n"
    ".visible .entry sim_add(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 count)\n"
    "{ ret; }\n"
    ".visible .entry sim_copy(.param .u64 out, .param .u64 in, .param .u64 bytes) { ret; }\n";

static struct entries cuda;

static void check(const char *what, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

#define CHECK(call) check(#call, (int) (call))

static size_t available(void)
{
    size_t left, total;

    CHECK(cuda.cuMemGetInfo(&left, &total));
    return left;
}

static void tell_memory(void)
{
    size_t left, total, whole;
    int count;

    CHECK(cuda.cuDeviceGetCount(&count));
    CHECK(cuda.cuMemGetInfo(&left, &total));
    CHECK(cuda.cuDeviceTotalMem(&whole, 0));
    printf("devices %d\ntotal %zu\nwhole %zu\navailable %zu\n", count, total, whole, left);
}

static void copy_there_and_back(void)
{
    static unsigned char out[BYTES], back[BYTES];
    CUdeviceptr there, other;

    srand(1);
    for (size_t i = 0; i < BYTES; i++)
        out[i] = (unsigned char) rand();
    CHECK(cuda.cuMemAlloc(&there, BYTES));
    CHECK(cuda.cuMemAlloc(&other, BYTES));
    CHECK(cuda.cuMemcpyHtoD(there, out, BYTES));
    CHECK(cuda.cuMemcpyDtoD(other, there, BYTES));
    CHECK(cuda.cuMemcpyDtoH(back, other, BYTES));
    printf("unchanged %d\n", memcmp(out, back, BYTES) == 0);
    CHECK(cuda.cuMemFree(there));
    CHECK(cuda.cuMemFree(other));
}

static void launch(CUmodule module, const char *name, void **arguments)
{
    CUfunction kernel;

    CHECK(cuda.cuModuleGetFunction(&kernel, module, name));
    CHECK(cuda.cuLaunchKernel(kernel, 8, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
}

/* Fill arrays with 1.5 and 2.25, add them, copy the sum; an array in front must stay zero. */
static void compute(void)
{
    uint64_t count = WORDS, bytes = WORDS * sizeof(float);
    uint32_t left = 0x3fc00000, right = 0x40100000;
    float back[5 * WORDS];
    size_t wrong = 0;
    CUdeviceptr at, a, b, sum, copy;
    CUmodule module;

    memset(back, 0, sizeof(back));
    CHECK(cuda.cuModuleLoadData(&module, kernels));
    CHECK(cuda.cuMemAlloc(&at, sizeof(back)));
    CHECK(cuda.cuMemcpyHtoD(at, back, sizeof(back)));
    a = at + bytes;
    b = a + bytes;
    sum = b + bytes;
    copy = sum + bytes;
    launch(module, "sim_fill", (void *[]) {&a, &left, &count});
    launch(module, "sim_fill", (void *[]) {&b, &right, &count});
    launch(module, "sim_add", (void *[]) {&sum, &a, &b, &count});
    launch(module, "sim_copy", (void *[]) {&copy, &sum, &bytes});
    CHECK(cuda.cuCtxSynchronize());
    CHECK(cuda.cuMemcpyDtoH(back, at, sizeof(back)));
    for (size_t i = 0; i < sizeof(back) / sizeof(*back); i++)
        wrong += back[i] != (const float[]) {0.0F, 1.5F, 2.25F, 3.75F, 3.75F}[i / WORDS];
    printf("wrong %zu\n", wrong);
    CHECK(cuda.cuMemFree(at));
}

#ifdef WITH_NVML
static void tell_nvml(const char *when)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;
    unsigned int count;

    CHECK(nvmlInit());
    CHECK(nvmlDeviceGetCount(&count));
    CHECK(nvmlDeviceGetHandleByIndex(0, &device));
    CHECK(nvmlDeviceGetMemoryInfo(device, &memory));
    printf("nvml %s %u %llu %llu\n", when, count, memory.total, memory.used);
    CHECK(nvmlShutdown());
}
#else
static void tell_nvml(const char *when)
{
    (void) when;
}
#endif

static void take_until_refused(void)
{
    static CUdeviceptr blocks[MOST_STEPS];
    size_t before = available();
    size_t count = 0, left;
    CUdeviceptr refused;
    int result = 0;

    while (count < MOST_STEPS && result == 0)
        if ((result = cuda.cuMemAlloc(&blocks[count], STEP)) == 0)
            count++;
    left = available();
    printf("taken %zu\nrefused %d\nleft %zu\n", count * STEP, result, left);
    printf("beyond %d\n", (int) cuda.cuMemAlloc(&refused, left + 1));
    tell_nvml("full");
    while (count > 0)
        CHECK(cuda.cuMemFree(blocks[--count]));
    printf("returned %d\n", available() == before);
}

int main(void)
{
    CUcontext context;

    cuda = find_entries();
    CHECK(cuda.cuInit(0));
    CHECK(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuda.cuCtxSetCurrent(context));
    tell_memory();
    tell_nvml("start");
    copy_there_and_back();
    compute();
    take_until_refused();
    CHECK(cuda.cuDevicePrimaryCtxRelease(0));
    tell_nvml("end");
    return 0;
}
