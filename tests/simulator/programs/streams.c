/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c -- order in and between streams, events, host functions, the built-in kernels. */
#include "check.h"

#include <unistd.h>

enum { COUNT = 100000 };

static CUfunction k_spin, k_fill, k_add, k_copy;

static CUresult fill(CUstream stream, CUdeviceptr address, uint32_t value, uint64_t count)
{
    return launch(k_fill, stream, 64, &address, &value, &count, NULL);
}

static void kernels_compute(void)
{
    float *host = malloc(COUNT * sizeof(float));
    CUdeviceptr a, b, sum;
    uint64_t count = COUNT, bytes = COUNT * sizeof(float);

    CHECK(cuMemAlloc(&a, bytes));
    CHECK(cuMemAlloc(&b, bytes));
    CHECK(cuMemAlloc(&sum, bytes));
    for (int i = 0; i < COUNT; i++)
        host[i] = (float) i;
    CHECK(cuMemcpyHtoD(a, host, bytes));
    CHECK(launch(k_copy, NULL, 64, &b, &a, &bytes, NULL));
    CHECK(launch(k_add, NULL, 64, &sum, &a, &b, &count));
    CHECK(cuMemcpyDtoH(host, sum, bytes));
    for (int i = 0; i < COUNT; i++)
        EXPECT(host[i] == 2.0f * (float) i);
    CHECK(fill(NULL, sum, 0xdeadbeef, COUNT));
    CHECK(cuMemcpyDtoH(host, sum, bytes));
    EXPECT(((uint32_t *) host)[0] == 0xdeadbeef && ((uint32_t *) host)[COUNT - 1] == 0xdeadbeef);
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    CHECK(cuMemFree(sum));
    free(host);
}

static void packed_arguments(void)
{
    struct {
        uint64_t address;
        uint32_t value;
        uint32_t gap;
        uint64_t count;
    } packed = {.value = 7, .count = 4};
    size_t size = sizeof(packed);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    void *parameters[] = {&packed.address, &packed.value, &packed.count};
    uint32_t back[4] = {0};
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 16));
    packed.address = a;
    CHECK(cuLaunchKernel(k_fill, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    CHECK(cuMemcpyDtoH(back, a, sizeof(back)));
    EXPECT(back[0] == 7 && back[3] == 7);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_fill, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, extra));
    size = 12;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_fill, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    CHECK(cuMemFree(a));
}

static void launches_are_checked(void)
{
    uint64_t ns = 0;
    void *parameters[] = {&ns};

    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_spin, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_spin, 1, 1, 1, 1025, 1, 1, 0, NULL, parameters, NULL));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_spin, 1, 1, 1, 32, 32, 2, 0, NULL, parameters, NULL));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_spin, 1, 1, 1, 1, 1, 1, 1 << 20, NULL, parameters, NULL));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuLaunchKernel(k_spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                  cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    EXPECT_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                  cuLaunchCooperativeKernel(k_spin, 1 << 20, 1, 1, 128, 1, 1, 0, NULL, parameters));
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1};
    CHECK(cuLaunchKernelEx(&config, k_spin, parameters, NULL));
    CHECK(cuCtxSynchronize());
}

static void streams_are_asynchronous(void)
{
    CUstream first, second;
    uint32_t value = 0;
    CUdeviceptr a;

    CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuMemsetD32(a, 1, 1));
    CHECK(cuCtxSynchronize());
    spin(k_spin, first, 1, 30000000);
    CHECK(fill(first, a, 2, 1));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
    /* The other stream does not wait. */
    CHECK(cuMemcpyDtoHAsync(&value, a, 4, second));
    CHECK(cuStreamSynchronize(second));
    EXPECT(value == 1);
    CHECK(cuStreamSynchronize(first));
    CHECK(cuStreamQuery(first));
    CHECK(cuMemcpyDtoH(&value, a, 4));
    EXPECT(value == 2);
    CHECK(cuStreamDestroy(first));
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(first));
    CHECK(cuStreamDestroy(second));
    CHECK(cuMemFree(a));
}

static void legacy_stream_waits_and_is_waited_for(void)
{
    CUstream blocking;
    uint32_t value = 0;
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    spin(k_spin, blocking, 1, 5000000);
    CHECK(fill(blocking, a, 3, 1));
    CHECK(cuMemcpyDtoH(&value, a, 4)); /* in the legacy stream: after the blocking one */
    EXPECT(value == 3);
    spin(k_spin, NULL, 1, 5000000);
    CHECK(fill(NULL, a, 4, 1));
    CHECK(cuMemcpyDtoHAsync(&value, a, 4, blocking));
    CHECK(cuStreamSynchronize(blocking));
    EXPECT(value == 4);
    spin(k_spin, blocking, 1, 5000000);
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    CHECK(cuStreamSynchronize(NULL));
    CHECK(cuStreamQuery(blocking));
    CHECK(cuStreamDestroy(blocking));
    CHECK(cuMemFree(a));
}

static void events_order_streams(void)
{
    CUstream first, second;
    CUevent middle, start, end, untimed;
    uint32_t value = 0;
    CUdeviceptr a;
    float ms = -1;

    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&middle, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK(cuEventQuery(middle)); /* never recorded: nothing to wait for */
    CHECK(cuEventRecord(start, first));
    spin(k_spin, first, 1, 10000000);
    CHECK(fill(first, a, 5, 1));
    CHECK(cuEventRecord(middle, first));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(middle));
    CHECK(cuStreamWaitEvent(second, middle, 0));
    CHECK(cuMemcpyDtoHAsync(&value, a, 4, second));
    CHECK(cuStreamSynchronize(second));
    EXPECT(value == 5);
    CHECK(cuEventRecord(end, first));
    CHECK(cuEventSynchronize(end));
    CHECK(cuEventElapsedTime(&ms, start, end));
    EXPECT(ms >= 10.0f);
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, middle));
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, untimed));
    spin(k_spin, first, 1, 10000000);
    CHECK(cuEventRecord(end, first));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, start, end));
    CHECK(cuEventDestroy(end)); /* while it is pending */
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(end));
    CHECK(cuEventDestroy(start));
    CHECK(cuEventDestroy(middle));
    CHECK(cuStreamDestroy(first));
    CHECK(cuStreamDestroy(second));
    CHECK(cuMemFree(a));
}

struct note {
    uint32_t seen;
    uint32_t *pinned;
    int order;
};

static int calls;

static void note_value(void *data)
{
    struct note *note = data;

    note->seen = *note->pinned;
    note->order = ++calls;
}

static void note_callback(CUstream stream, CUresult status, void *data)
{
    (void) stream;
    EXPECT(status == CUDA_SUCCESS);
    note_value(data);
}

static void host_functions(void)
{
    struct note first = {0}, second = {0};
    uint32_t *pinned;
    CUstream stream;
    CUdeviceptr a;

    CHECK(cuMemAllocHost((void **) &pinned, 4));
    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    first.pinned = second.pinned = pinned;
    for (int i = 0; i < 20; i++) {
        *pinned = 0;
        calls = 0;
        CHECK(fill(stream, a, 11, 1));
        CHECK(cuMemcpyDtoHAsync(pinned, a, 4, stream));
        CHECK(cuLaunchHostFunc(stream, note_value, &first));
        CHECK(fill(stream, a, 12, 1));
        CHECK(cuMemcpyDtoHAsync(pinned, a, 4, stream));
        CHECK(cuStreamAddCallback(stream, note_callback, &second, 0));
        CHECK(cuStreamSynchronize(stream));
        EXPECT(first.seen == 11 && first.order == 1);
        EXPECT(second.seen == 12 && second.order == 2);
    }
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFree(a));
    CHECK(cuMemFreeHost(pinned));
}

static void words(void)
{
    volatile uint32_t *word;
    CUstream stream;
    uint32_t value = 0;
    CUdeviceptr a;

    CHECK(cuMemAllocHost((void **) &word, 4));
    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    *word = 0;
    CHECK(cuStreamWaitValue32(stream, (CUdeviceptr) word, 5, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(cuStreamWriteValue32(stream, a, 77, 0));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    *word = 5;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH(&value, a, 4));
    EXPECT(value == 77);
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFreeHost((void *) word));
    CHECK(cuMemFree(a));
}

static void more_than_fits_a_ring(void)
{
    uint64_t before, count = 1;
    uint32_t value = 0;
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 4));
    before = 0;
    for (uint32_t i = 1; i <= 5000; i++) {
        uint32_t next = i;
        CHECK(launch(k_fill, NULL, 1, &a, &next, &count, NULL));
    }
    CHECK(cuMemcpyDtoH(&value, a, 4));
    EXPECT(value == 5000 && !before);
    CHECK(cuMemFree(a));
}

static void many_streams(void)
{
    enum { STREAMS = 100 };
    CUstream streams[STREAMS];
    uint32_t values[STREAMS];
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, sizeof(values)));
    for (int i = 0; i < STREAMS; i++) {
        CHECK(cuStreamCreateWithPriority(&streams[i], i % 2, -1));
        spin(k_spin, streams[i], 1, 1000);
        CHECK(fill(streams[i], a + 4 * (size_t) i, (uint32_t) i, 1));
    }
    for (int i = 0; i < STREAMS; i++) {
        CHECK(cuStreamSynchronize(streams[i]));
        CHECK(cuStreamDestroy(streams[i]));
    }
    CHECK(cuMemcpyDtoH(values, a, sizeof(values)));
    for (int i = 0; i < STREAMS; i++)
        EXPECT(values[i] == (uint32_t) i);
    CHECK(cuMemFree(a));
}

static void illegal_addresses_stay(void)
{
    uint32_t value;
    CUdeviceptr a;

    CHECK(cuMemAlloc(&a, 16));
    CHECK(fill(NULL, a, 1, 5)); /* a word too many */
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH(&value, a, 4));
    EXPECT_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&a, 16));
    CHECK(cuDevicePrimaryCtxReset(0));
}

int main(void)
{
    open_device(0);
    k_spin = load_kernel("sim_spin");
    k_fill = load_kernel("sim_fill");
    k_add = load_kernel("sim_add");
    k_copy = load_kernel("sim_copy");
    kernels_compute();
    packed_arguments();
    launches_are_checked();
    streams_are_asynchronous();
    legacy_stream_waits_and_is_waited_for();
    events_order_streams();
    host_functions();
    words();
    more_than_fits_a_ring();
    many_streams();
    illegal_addresses_stay();
    puts("ok");
    return 0;
}
