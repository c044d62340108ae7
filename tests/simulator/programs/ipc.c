/* SPDX-License-Identifier: Apache-2.0 */
/* ipc.c -- memory of one process in another; a fork; two devices.
 *
 * The other process is another run of this program, since a forked child cannot use CUDA.
 */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static void read_all(int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, (char *) bytes + done, size - done);
        EXPECT(got > 0);
        done += (size_t) got;
    }
}

/* The other side: reads handles from standard input, changes the bytes, waits for end of file. */
static int import(void)
{
    CUipcMemHandle large, small, broken;
    CUdeviceptr a, b, none;
    uint32_t word = 0;
    size_t before;
    char end;

    open_device(0);
    before = free_bytes();
    read_all(0, &large, sizeof(large));
    read_all(0, &small, sizeof(small));
    CHECK(cuIpcOpenMemHandle(&a, large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(cuIpcOpenMemHandle(&b, small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(cuMemcpyDtoH(&word, a + 4 * MIB, 4));
    EXPECT(word == 0x11111111);
    CHECK(cuMemcpyDtoH(&word, b, 4));
    EXPECT(word == 0x22222222);
    CHECK(cuMemsetD32(a + 4 * MIB, 0x33333333, 1));
    CHECK(cuMemsetD32(b, 0x44444444, 1));
    CHECK(cuCtxSynchronize());
    EXPECT(free_bytes() == before); /* charged where it was allocated */
    broken = large;
    broken.reserved[0] ^= 1;
    EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                  cuIpcOpenMemHandle(&none, broken, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(cuIpcCloseMemHandle(b));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(b));
    putchar('x');
    fflush(stdout);
    EXPECT(read(0, &end, 1) == 0);
    return 0;
}

static void exports(const char *self)
{
    int to[2], from[2], status;
    CUipcMemHandle handle;
    CUdeviceptr large, small, none;
    uint32_t word = 0;
    pid_t child;
    char done;

    CHECK(cuMemAlloc(&large, 8 * MIB));
    CHECK(cuMemAlloc(&small, 300));
    CHECK(cuMemsetD32(large, 0x11111111, 2 * MIB));
    CHECK(cuMemsetD32(small, 0x22222222, 75));
    CHECK(cuCtxSynchronize());
    EXPECT(!pipe(to) && !pipe(from));
    child = fork();
    if (child == 0) {
        EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
        EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&none, 4));
        EXPECT_RESULT(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[0]), close(to[1]), close(from[0]), close(from[1]);
        execl(self, self, "import", NULL);
        _exit(1);
    }
    close(to[0]);
    close(from[1]);
    CHECK(cuIpcGetMemHandle(&handle, large));
    EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT,
                  cuIpcOpenMemHandle(&none, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT(write(to[1], &handle, sizeof(handle)) == sizeof(handle));
    CHECK(cuIpcGetMemHandle(&handle, small));
    EXPECT(write(to[1], &handle, sizeof(handle)) == sizeof(handle));
    read_all(from[0], &done, 1);
    CHECK(cuMemcpyDtoH(&word, large + 4 * MIB, 4));
    EXPECT(word == 0x33333333);
    CHECK(cuMemcpyDtoH(&word, small, 4));
    EXPECT(word == 0x44444444);
    CHECK(cuMemFree(large));
    close(to[1]);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    CHECK(cuMemFree(small));
}

static void set_flag(void *flag)
{
    *(volatile int *) flag = 1;
}

static void two_devices(CUcontext first)
{
    uint32_t values[2] = {0};
    volatile int called = 0;
    CUstream here, there;
    CUdeviceptr a, b;
    CUcontext second;
    CUevent event;

    CHECK(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&a, 4));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuCtxCreate(&second, NULL, 0, 1));
    CHECK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&b, 4));
    CHECK(cuMemsetD32Async(b, 5, 1, there));
    CHECK(cuStreamSynchronize(there));
    CHECK(cuCtxSetCurrent(first));
    CHECK(cuLaunchHostFunc(here, set_flag, (void *) &called));
    CHECK(cuMemsetD32Async(a, 6, 1, here));
    CHECK(cuEventRecord(event, here));
    CHECK(cuStreamWaitEvent(there, event, 0)); /* over devices */
    CHECK(cuMemcpyPeerAsync(b, second, a, first, 4, there));
    CHECK(cuStreamSynchronize(there));
    EXPECT(called);
    CHECK(cuMemcpyDtoH(&values[0], b, 4));
    EXPECT(values[0] == 6);
    CHECK(cuStreamDestroy(here));
    CHECK(cuStreamDestroy(there));
    CHECK(cuMemFree(a));
    CHECK(cuCtxDestroy(second));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&values[1], b, 4));
}

int main(int count, char **arguments)
{
    CUcontext context;

    if (count > 1)
        return import();
    context = open_device(0);
    exports(arguments[0]);
    two_devices(context);
    puts("ok");
    return 0;
}
