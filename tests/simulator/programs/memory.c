/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- allocations, copies in every direction, sets, arrays, host memory. */
#include "check.h"

static void fill_pattern(unsigned char *bytes, size_t size, unsigned int seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char) (seed + i * 7 + (i >> 8));
}

static void copies_there_and_back(void)
{
    size_t size = 3 * MIB + 12345;
    unsigned char *out = malloc(size);
    unsigned char *back = calloc(1, size);
    CUdeviceptr a, b;

    fill_pattern(out, size, 1);
    CHECK(cuMemAlloc(&a, size));
    CHECK(cuMemAlloc(&b, size));
    EXPECT(a % (2 * MIB) == 0 && b % (2 * MIB) == 0 && a != b);
    CHECK(cuMemcpyHtoD(a, out, size));
    CHECK(cuMemcpyDtoD(b, a, size));
    CHECK(cuMemcpyDtoH(back, b, size));
    EXPECT(!memcmp(out, back, size));
    CHECK(cuMemcpy((CUdeviceptr) back, a + 100, 1000));
    EXPECT(!memcmp(out + 100, back, 1000));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a + 1, out, size));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, 4096, 16));
    CHECK(cuMemFree(a));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, a, 16));
    CHECK(cuMemFree(b));
    free(out);
    free(back);
}

static void asynchronous_copies(void)
{
    size_t size = 1 * MIB;
    unsigned char *pinned, *loose = malloc(size);
    unsigned char *back = calloc(1, size);
    CUdeviceptr a;
    CUstream stream;

    CHECK(cuMemAllocHost((void **) &pinned, size));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&a, size));
    fill_pattern(loose, size, 9);
    CHECK(cuMemcpyHtoDAsync(a, loose, size, stream));
    memset(loose, 0, size); /* pageable: reusable as soon as the call returned */
    CHECK(cuMemcpyDtoHAsync(pinned, a, size, stream));
    CHECK(cuStreamSynchronize(stream));
    fill_pattern(back, size, 9);
    EXPECT(!memcmp(pinned, back, size));
    CHECK(cuMemsetD32Async(a, 0x01020304, size / 4, stream));
    CHECK(cuMemcpyDtoHAsync(loose, a, size, stream));
    EXPECT(loose[0] == 4 && loose[size - 1] == 1); /* to pageable memory: done on return */
    CHECK(cuMemFree(a));
    CHECK(cuMemFreeHost(pinned));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
    CHECK(cuStreamDestroy(stream));
    free(loose);
    free(back);
}

static void rows(void)
{
    enum { WIDTH = 300, HEIGHT = 40 };
    unsigned char out[HEIGHT][WIDTH], back[HEIGHT][WIDTH];
    CUDA_MEMCPY2D copy = {0};
    CUdeviceptr a;
    size_t pitch;

    fill_pattern(out[0], sizeof(out), 3);
    CHECK(cuMemAllocPitch(&a, &pitch, WIDTH, HEIGHT, 4));
    EXPECT(pitch == 512);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = out;
    copy.srcPitch = WIDTH;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = a;
    copy.dstPitch = pitch;
    copy.WidthInBytes = WIDTH;
    copy.Height = HEIGHT;
    CHECK(cuMemcpy2D(&copy));
    CHECK(cuMemsetD2D8(a + 10, pitch, 0xee, 20, HEIGHT));
    memset(back, 0, sizeof(back));
    copy = (CUDA_MEMCPY2D) {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = a,
        .srcPitch = pitch,
        .dstMemoryType = CU_MEMORYTYPE_HOST,
        .dstHost = back,
        .dstPitch = WIDTH,
        .WidthInBytes = WIDTH,
        .Height = HEIGHT,
    };
    CHECK(cuMemcpy2D(&copy));
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            EXPECT(back[y][x] == (x >= 10 && x < 30 ? 0xee : out[y][x]));
    CHECK(cuMemFree(a));
}

static void arrays(void)
{
    enum { W = 16, H = 8, D = 4 };
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = W, .Height = H, .Depth = D, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2};
    float out[D][H][W][2], back[D][H][W][2];
    size_t before = free_bytes();
    CUDA_MEMCPY3D copy = {0};
    CUarray array;

    for (size_t i = 0; i < sizeof(out) / sizeof(float); i++)
        ((float *) out)[i] = (float) i;
    CHECK(cuArray3DCreate(&array, &shape));
    EXPECT(before - free_bytes() == sizeof(out));
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = out;
    copy.srcPitch = sizeof(out[0][0]);
    copy.srcHeight = H;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = sizeof(out[0][0]);
    copy.Height = H;
    copy.Depth = D;
    CHECK(cuMemcpy3D(&copy));
    memset(back, 0, sizeof(back));
    CHECK(cuMemcpyAtoH(back, array, 0, sizeof(back)));
    EXPECT(!memcmp(out, back, sizeof(out)));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(back, array, 8, sizeof(back)));
    CHECK(cuArrayDestroy(array));
    EXPECT(free_bytes() == before);
    shape.NumChannels = 3;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, &shape));
}

static void what_is_counted(void)
{
    static const struct {
        size_t asked, counted;
    } cases[] = {{1, 512},       {512, 512},     {513, 1024},
                 {MIB - 1, MIB}, {MIB, 2 * MIB}, {2 * MIB + 1, 4 * MIB}};
    size_t before = free_bytes();
    CUdeviceptr a;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(cuMemAlloc(&a, cases[i].asked));
        EXPECT(a % 512 == 0);
        EXPECT(before - free_bytes() == cases[i].counted);
        CHECK(cuMemFree(a));
        EXPECT(free_bytes() == before);
    }
    CHECK(cuMemAllocManaged(&a, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    ((int *) a)[0] = 42; /* managed memory is the host's too */
    int value = 0;
    CHECK(cuMemcpyDtoH(&value, a, sizeof(value)));
    EXPECT(value == 42);
    CHECK(cuMemFree(a));
    EXPECT(free_bytes() == before);
}

static void what_is_refused(void)
{
    size_t available = free_bytes();
    size_t base_size;
    CUdeviceptr a, base;

    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&a, 0));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 1));
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, available + 1));
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, SIZE_MAX));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(12345));
    CHECK(cuMemFree(0));
    CHECK(cuMemAlloc(&a, 8192));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(a + 512));
    CHECK(cuMemGetAddressRange(&base, &base_size, a + 5000));
    EXPECT(base == a && base_size == 8192);
    CHECK(cuMemFree(a));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemFree(a));
    EXPECT(free_bytes() == available);
    /* All of it, in pieces, and then not one byte more. */
    CHECK(cuMemAlloc(&a, available / (2 * MIB) * (2 * MIB)));
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&base, 2 * MIB));
    CHECK(cuMemFree(a));
}

static void many(void)
{
    enum { COUNT = 10000 };
    static CUdeviceptr pointers[COUNT];
    size_t before = free_bytes();
    unsigned int state = 1;

    for (int i = 0; i < COUNT; i++) {
        uint32_t mark = (uint32_t) i;
        state = state * 1103515245 + 12345;
        CHECK(cuMemAlloc(&pointers[i], 1 + state % 70000));
        if (i % 100 == 0)
            CHECK(cuMemcpyHtoD(pointers[i] / 4 * 4, &mark, 1));
    }
    for (int i = 0; i < COUNT; i += 2)
        CHECK(cuMemFree(pointers[i]));
    for (int i = 0; i < COUNT; i += 2)
        CHECK(cuMemAlloc(&pointers[i], 5000));
    for (int i = 0; i < COUNT; i++)
        CHECK(cuMemFree(pointers[i]));
    EXPECT(free_bytes() == before);
}

static void reset_gives_back(void)
{
    CUcontext context;
    CUdeviceptr a;
    void *pinned;
    size_t total, available;

    for (int i = 0; i < 50; i++) {
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuMemGetInfo(&available, &total));
        CHECK(cuMemAlloc(&a, available - 64 * MIB));
        CHECK(cuMemAlloc(&a, 1000));
        CHECK(cuMemAllocHost(&pinned, 4096));
        CHECK(cuDevicePrimaryCtxReset(0));
    }
}

int main(void)
{
    open_device(0);
    copies_there_and_back();
    asynchronous_copies();
    rows();
    arrays();
    what_is_counted();
    what_is_refused();
    many();
    reset_gives_back();
    puts("ok");
    return 0;
}
