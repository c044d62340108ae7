/* SPDX-License-Identifier: Apache-2.0 */
/* check.h -- common code of the simulated driver's test programs: plain cuda.h, and assertions that
 * print the line. */
#ifndef CHECK_H
#define CHECK_H

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t) 1 << 20)
#define GIB ((size_t) 1 << 30)

#define EXPECT(condition)                                                   \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#define EXPECT_RESULT(expected, call)                                                 \
    do {                                                                              \
        int expect_result = (int) (call);                                             \
        if (expect_result != (int) (expected)) {                                      \
            fprintf(stderr, "%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, \
                    expect_result, (int) (expected));                                 \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define CHECK(call) EXPECT_RESULT(CUDA_SUCCESS, call)

static inline CUcontext open_device(int ordinal)
{
    CUcontext context;

    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, ordinal));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

static inline size_t free_bytes(void)
{
    size_t available, total;

    CHECK(cuMemGetInfo(&available, &total));
    return available;
}

/* The built-in kernel of that name; its code in the image is ignored. */
static inline CUfunction load_kernel(const char *name)
{
    const char *second = strcmp(name, "sim_fill") ? "u64" : "u32";
    char image[512];
    CUfunction function;
    CUmodule module;

    snprintf(image, sizeof(image),
             ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry %s(.param .u64 a, "
             ".param .%s b, .param .u64 c, .param .u64 d) { ret; }\n",
             name, second);
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline CUresult launch(CUfunction function, CUstream stream, unsigned int blocks, void *a,
                              void *b, void *c, void *d)
{
    void *parameters[] = {a, b, c, d};

    return cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

static inline void spin(CUfunction function, CUstream stream, unsigned int blocks, uint64_t ns)
{
    CHECK(launch(function, stream, blocks, &ns, NULL, NULL, NULL));
}

#endif
