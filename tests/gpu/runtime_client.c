/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_client.c -- driver_client.c by the CUDA runtime, which looks up every entry point. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *what, cudaError_t result)
{
    if (result == cudaSuccess)
        return;
    printf("%s: %d %s\n", what, result, cudaGetErrorName(result));
    exit(1);
}

int main(int count, char **words)
{
    size_t beyond = count > 1 ? strtoull(words[1], NULL, 10) : 0;
    static unsigned char out[1 << 20];
    static unsigned char in[1 << 20];
    size_t available;
    size_t total;
    void *pointer;
    void *stream_ordered;
    void *refused;

    memset(out, 0x5a, sizeof(out));
    check("info", cudaMemGetInfo(&available, &total));
    printf("total %zu\n", total);
    check("alloc", cudaMalloc(&pointer, sizeof(out)));
    check("to", cudaMemcpy(pointer, out, sizeof(out), cudaMemcpyHostToDevice));
    check("from", cudaMemcpy(in, pointer, sizeof(in), cudaMemcpyDeviceToHost));
    printf("same %d\n", memcmp(in, out, sizeof(in)) == 0);
    check("async", cudaMallocAsync(&stream_ordered, sizeof(out), 0));
    check("free async", cudaFreeAsync(stream_ordered, 0));
    printf("beyond %d\n", cudaMalloc(&refused, beyond));
    check("reset", cudaDeviceReset());
    return 0;
}
