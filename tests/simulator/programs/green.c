/* SPDX-License-Identifier: Apache-2.0 */
/* green.c -- green contexts: splitting of SMs, memory, streams. */
#include "check.h"

enum { PARTS = 2 };

static CUdevResource parts[PARTS], rest;

static CUgreenCtx make(CUdevResource *resource)
{
    CUdevResourceDesc description;
    CUgreenCtx green;

    CHECK(cuDevResourceGenerateDesc(&description, resource, 1));
    CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static void split(void)
{
    unsigned int groups = PARTS, possible;
    CUdevResource whole, again;
    CUdevResourceDesc description;
    CUgreenCtx green;

    CHECK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(whole.sm.smCount == 132);
    CHECK(cuDevSmResourceSplitByCount(NULL, &possible, &whole, NULL, 0, 9));
    EXPECT(possible == 132 / 16);
    CHECK(cuDevSmResourceSplitByCount(parts, &groups, &whole, &rest, 0, 60));
    EXPECT(groups == 2 && parts[0].sm.smCount == 64 && parts[1].sm.smCount == 64);
    EXPECT(rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount == 4);
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuDevSmResourceSplitByCount(&again, &groups, &whole, NULL, 0, 133));
    EXPECT_RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                  cuDevSmResourceSplitByCount(&again, &groups, &parts[0], NULL, 0, 8));
    EXPECT_RESULT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                  cuDeviceGetDevResource(0, &again, CU_DEV_RESOURCE_TYPE_INVALID));
    EXPECT_RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                  cuDevResourceGenerateDesc(&description, (CUdevResource[]) {whole, rest}, 2));
    EXPECT_RESULT(
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        cuDevResourceGenerateDesc(&description, (CUdevResource[]) {parts[0], parts[0]}, 2));
    CHECK(cuDevResourceGenerateDesc(&description, parts, PARTS));
    CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK(cuGreenCtxGetDevResource(green, &again, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(again.sm.smCount == 128);
    CHECK(cuDevSmResourceSplitByCount(NULL, &possible, &again, NULL, 0, 0));
    EXPECT(possible == 16);
    CHECK(cuGreenCtxDestroy(green));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                  cuGreenCtxCreate(&green, description, 1, CU_GREEN_CTX_DEFAULT_STREAM));
}

/* They take as much memory as a context, and hold the primary one. */
static void bytes(void)
{
    CUcontext primary = open_device(0), context, current;
    size_t before = free_bytes(), reserve;
    CUdeviceptr address, outside;
    unsigned int flags;
    CUgreenCtx green = make(&parts[0]);
    int active;

    reserve = before - free_bytes();
    EXPECT(reserve == 520 * MIB);
    CHECK(cuCtxFromGreenCtx(&context, green));
    EXPECT(context != primary);
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext) green));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxGetCurrent(&current));
    EXPECT(current == context);
    CHECK(cuMemAlloc(&address, 8 * MIB));
    CHECK(cuPointerGetAttribute(&current, CU_POINTER_ATTRIBUTE_CONTEXT, address));
    EXPECT(current == primary);
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuMemAlloc(&outside, 8 * MIB));
    CHECK(cuDevicePrimaryCtxRelease(0));
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(active);
    CHECK(cuGreenCtxDestroy(green));
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(!active);
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(green));
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(context));
    open_device(0);
    EXPECT(free_bytes() == before);
    green = make(&parts[0]);
    CHECK(cuDevicePrimaryCtxReset(0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT, cuCtxFromGreenCtx(&context, green));
    open_device(0);
    EXPECT(free_bytes() == before - reserve);
    CHECK(cuGreenCtxDestroy(green));
    EXPECT(free_bytes() == before);
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(active);
}

static void streams(void)
{
    CUfunction spin = load_kernel("sim_spin");
    uint64_t ns = 20000000;
    void *arguments[] = {&ns};
    CUcontext primary, context, found;
    CUgreenCtx green = make(&parts[0]), of_stream;
    CUstream stream, later, plain;
    CUevent event;

    CHECK(cuCtxGetCurrent(&primary));
    CHECK(cuCtxFromGreenCtx(&context, green));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, green, 0, 0));
    CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CHECK(cuStreamGetGreenCtx(stream, &of_stream));
    EXPECT(of_stream == green);
    CHECK(cuStreamGetCtx(stream, &found));
    EXPECT(found == context);
    CHECK(cuStreamGetCtx_v2(stream, &found, &of_stream));
    EXPECT(found == primary && of_stream == green);
    CHECK(cuStreamGetCtx_v2(NULL, &found, &of_stream));
    EXPECT(found == primary && !of_stream);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&plain, 0));
    CHECK(cuStreamGetCtx_v2(NULL, &found, &of_stream));
    EXPECT(found == primary && of_stream == green);
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuStreamGetGreenCtx(plain, &of_stream));
    EXPECT(of_stream == green);

    CHECK(cuEventCreate(&event, 0));
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    CHECK(cuGreenCtxRecordEvent(green, event));
    CHECK(cuStreamQuery(plain));
    CHECK(cuGreenCtxWaitEvent(green, event));
    CHECK(cuGreenCtxStreamCreate(&later, green, CU_STREAM_NON_BLOCKING, 0));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(plain));
    EXPECT_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(later));
    CHECK(cuStreamSynchronize(later));
    CHECK(cuEventQuery(event));
    CHECK(cuStreamQuery(stream));

    CHECK(cuGreenCtxDestroy(green));
    EXPECT_RESULT(CUDA_ERROR_STREAM_DETACHED, cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuStreamDestroy(plain));
    CHECK(cuStreamDestroy(later));
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(stream));
}

int main(void)
{
    CHECK(cuInit(0));
    split();
    bytes();
    streams();
    printf("ok\n");
    return 0;
}
