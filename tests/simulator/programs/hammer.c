/* SPDX-License-Identifier: Apache-2.0 */
/* hammer.c -- one of many processes that allocate, launch, copy and free until it is killed.
 *
 *   hammer run SEED     does so, and prints "ready" once it has begun
 *   hammer free         prints how many bytes are free now
 *   hammer hold BYTES   holds them until standard input ends
 *   hammer spin NS N    N kernels of NS each, on the whole device; prints the events' time, ms
 */
#include "check.h"

#include <unistd.h>

static int run(unsigned int state)
{
    enum { LIVE = 64 };
    CUdeviceptr held[LIVE] = {0};
    CUfunction kernel = load_kernel("sim_fill");
    CUstream stream;

    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    puts("ready");
    fflush(stdout);
    for (;;) {
        CUdeviceptr *place;
        uint64_t count = 256;
        uint32_t value = state;

        state = state * 1103515245 + 12345;
        place = &held[state >> 16 & (LIVE - 1)];
        if (*place) {
            CHECK(cuMemFree(*place));
            *place = 0;
        } else {
            CUresult result = cuMemAlloc(place, 1024 + (state >> 8 & 0xfffff) * 64);
            if (result == CUDA_ERROR_OUT_OF_MEMORY)
                continue;
            CHECK(result);
            CHECK(launch(kernel, stream, 1, place, &value, &count, NULL));
            if (state >> 20 & 1) {
                uint32_t back = 0;
                CHECK(cuMemcpyDtoHAsync(&back, *place, 4, stream));
                EXPECT(back == value);
            }
        }
    }
}

static int hold(size_t bytes)
{
    CUdeviceptr a;
    char end;

    CHECK(cuMemAlloc(&a, bytes));
    CHECK(cuMemsetD8(a, 1, bytes < MIB ? bytes : MIB));
    CHECK(cuCtxSynchronize());
    puts("ready");
    fflush(stdout);
    (void) !read(0, &end, 1);
    return 0;
}

static int spin_many(uint64_t ns, int times)
{
    CUfunction kernel = load_kernel("sim_spin");
    CUevent start, end;
    float ms;

    CHECK(cuEventCreate(&start, 0));
    CHECK(cuEventCreate(&end, 0));
    CHECK(cuEventRecord(start, NULL));
    for (int i = 0; i < times; i++)
        spin(kernel, NULL, 1 << 16, ns);
    CHECK(cuEventRecord(end, NULL));
    puts("ready");
    fflush(stdout);
    CHECK(cuEventSynchronize(end));
    CHECK(cuEventElapsedTime(&ms, start, end));
    printf("%f\n", (double) ms);
    return 0;
}

int main(int count, char **arguments)
{
    EXPECT(count > 1);
    open_device(0);
    if (!strcmp(arguments[1], "run"))
        return run((unsigned int) atoi(arguments[2]));
    if (!strcmp(arguments[1], "hold"))
        return hold(strtoull(arguments[2], NULL, 10));
    if (!strcmp(arguments[1], "spin"))
        return spin_many(strtoull(arguments[2], NULL, 10), atoi(arguments[3]));
    printf("%zu\n", free_bytes());
    return 0;
}
