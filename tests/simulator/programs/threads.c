/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c -- threads of one process, each with default streams, streams, memory of its own.
 *
 * Compiled for per-thread default streams: NULL is another stream in every thread.
 */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "check.h"

#include <pthread.h>

enum { THREADS = 6, ROUNDS = 60, WORDS = 3000 };

static CUcontext context;
static CUfunction k_fill, k_copy;
static int calls[THREADS];

static void count_call(void *data)
{
    __atomic_add_fetch((int *) data, 1, __ATOMIC_RELAXED);
}

static void *work(void *argument)
{
    unsigned int self = (unsigned int) (size_t) argument;
    uint32_t back[WORDS];
    CUstream streams[2];

    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&streams[0], CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        CUstream stream = round % 3 == 2 ? NULL : streams[round % 3];
        uint32_t value = self * 1000 + round;
        uint64_t count = WORDS, bytes = sizeof(back);
        CUdeviceptr a, b;
        CUevent event;

        CHECK(cuMemAlloc(&a, sizeof(back)));
        CHECK(cuMemAllocAsync(&b, sizeof(back), stream));
        CHECK(cuEventCreate(&event, 0));
        CHECK(launch(k_fill, stream, 4, &a, &value, &count, NULL));
        CHECK(launch(k_copy, stream, 4, &b, &a, &bytes, NULL));
        CHECK(cuLaunchHostFunc(stream, count_call, &calls[self]));
        CHECK(cuMemcpyDtoHAsync(back, b, sizeof(back), stream));
        CHECK(cuEventRecord(event, stream));
        CHECK(cuEventSynchronize(event));
        for (int i = 0; i < WORDS; i++)
            EXPECT(back[i] == value);
        CHECK(cuMemFreeAsync(b, stream));
        CHECK(cuEventDestroy(event));
        CHECK(cuMemFree(a));
    }
    CHECK(cuStreamDestroy(streams[0]));
    CHECK(cuStreamDestroy(streams[1]));
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    size_t before;

    context = open_device(0);
    k_fill = load_kernel("sim_fill");
    k_copy = load_kernel("sim_copy");
    before = free_bytes();
    for (size_t i = 0; i < THREADS; i++)
        EXPECT(!pthread_create(&threads[i], NULL, work, (void *) i));
    for (size_t i = 0; i < THREADS; i++)
        EXPECT(!pthread_join(threads[i], NULL));
    CHECK(cuCtxSynchronize());
    for (size_t i = 0; i < THREADS; i++)
        EXPECT(calls[i] == ROUNDS);
    EXPECT(free_bytes() == before);
    puts("ok");
    return 0;
}
