/* SPDX-License-Identifier: Apache-2.0 */
/* driver_client.c -- prints the total memory, copies both ways, allocates argv[1] bytes. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *what, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: %d\n", what, result);
    exit(1);
}

int main(int count, char **words)
{
    size_t beyond = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    static unsigned char out[1 << 20];
    static unsigned char in[1 << 20];
    size_t available;
    size_t total;
    CUcontext context;
    CUdeviceptr pointer;
    CUdeviceptr refused;

    check("cuInit", cuInit(0));
    check("retain", cuDevicePrimaryCtxRetain(&context, 0));
    check("current", cuCtxSetCurrent(context));
    check("info", cuMemGetInfo(&available, &total));
    printf("total %zu\n", total);
    for (size_t i = 0; i < sizeof(out); i++)
        out[i] = (unsigned char) (i * 31);
    check("alloc", cuMemAlloc(&pointer, sizeof(out)));
    check("to", cuMemcpyHtoD(pointer, out, sizeof(out)));
    check("from", cuMemcpyDtoH(in, pointer, sizeof(in)));
    printf("same %d\n", memcmp(in, out, sizeof(in)) == 0);
    printf("beyond %d\n", cuMemAlloc(&refused, beyond));
    check("free", cuMemFree(pointer));
    check("release", cuDevicePrimaryCtxRelease(0));
    return 0;
}
