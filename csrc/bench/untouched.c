/* SPDX-License-Identifier: Apache-2.0 */
/* untouched.c -- functions without a hook: checks that dlsym() and cuGetProcAddress() return the
 * driver's own pointers, and times a call of one of these functions.
 */
#include "figures.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#include "untouched_names.inc"
};

enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

/* Is *function* in the driver's library? Only its file name has a release, such as
 * libcuda.so.580.65.06; the library may have been loaded by a symlink. */
static int is_in_driver(void *function, Dl_info *info)
{
    static const char stem[] = "libcuda.so.";
    char path[PATH_MAX];
    const char *name;

    if (!dladdr(function, info) || !realpath(info->dli_fname, path))
        return 0;
    name = strrchr(path, '/') + 1;
    return strncmp(name, stem, strlen(stem)) == 0 && strchr(name + strlen(stem), '.');
}

/* Open the driver's library, found by cuCtxGetDevice, which has no hook. */
static void *open_driver(void)
{
    Dl_info info;

    if (is_in_driver((void *) library.cuCtxGetDevice_pointer, &info))
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    fprintf(stderr, "load: cuCtxGetDevice is not the driver's own\n");
    exit(1);
}

static void *lookup(void *handle, const char *name)
{
    CUdriverProcAddressQueryResult status;
    __typeof__(&cuGetProcAddress_v2) get_address;
    void *found = NULL;
    void *symbol = dlsym(handle, "cuGetProcAddress_v2");

    memcpy(&get_address, &symbol, sizeof(get_address));
    get_address(name, &found, CUDA_VERSION, 0, &status);
    return found;
}

/* Count the names for which the library *handle* returns other pointers than the driver's. */
static unsigned count_elsewhere(void *handle, void *driver)
{
    unsigned elsewhere = 0;

    for (size_t i = 0; i < NAME_COUNT; i++)
        if (dlsym(handle, names[i]) != dlsym(driver, names[i]) ||
            lookup(handle, names[i]) != lookup(driver, names[i])) {
            fprintf(stderr, "load: %s is not the driver's own\n", names[i]);
            elsewhere++;
        }
    return elsewhere;
}

uint64_t untouched_time(void)
{
    CUdevice device;
    uint64_t began = timer_begin();
    CUresult result = CALL(cuCtxGetDevice)(&device);
    uint64_t ticks = timer_end() - began;

    library_check("cuCtxGetDevice", result);
    return ticks;
}

void untouched_elsewhere(size_t count)
{
    (void) count;
    call_open();
    printf("{\"figure\": \"elsewhere\", \"count\": %d, \"elsewhere\": %u}\n", NAME_COUNT,
           count_elsewhere(dlopen("libcuda.so.1", RTLD_NOW), open_driver()));
}
