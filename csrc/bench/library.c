/* SPDX-License-Identifier: Apache-2.0 */
/* library.c -- loads the driver; see library.h. */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library library;

static void *open_library(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW);

    if (handle)
        return handle;
    fprintf(stderr, "load: %s\n", dlerror());
    exit(1);
}

static void find(void *handle, const char *symbol, void *place)
{
    void *found = dlsym(handle, symbol);

    if (!found) {
        fprintf(stderr, "load: %s\n", dlerror());
        exit(1);
    }
    memcpy(place, &found, sizeof(found));
}

#define FIND(symbol) find(handle, #symbol, &library.symbol##_pointer);

void library_open_cuda(void)
{
    void *handle = open_library("libcuda.so.1");

    CUDA_CALLS(FIND)
}

void library_open_nvml(void)
{
    void *handle = open_library("libnvidia-ml.so.1");

    NVML_CALLS(FIND)
}

void library_check(const char *call, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "load: %s gave %d\n", call, result);
    exit(1);
}

void library_make_context(void)
{
    CUdevice device;
    CUcontext context;

    library_check("cuInit", CALL(cuInit)(0));
    library_check("cuDeviceGet", CALL(cuDeviceGet)(&device, 0));
    library_check("cuCtxCreate_v2", CALL(cuCtxCreate_v2)(&context, 0, device));
}
