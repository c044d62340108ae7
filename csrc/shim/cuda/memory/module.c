/* SPDX-License-Identifier: Apache-2.0 */
/* module.c -- hooks that load modules and libraries: code and its variables.
 *
 * No call reports how much memory that takes: it is covered by the reserve of a context, and what
 * goes beyond is measured afterwards. A container over its quota by the measurement cannot load
 * more.
 */
#include "shim/cuda/memory/charge.h"
#include "shim/driver.h"

static CUresult check_room(void)
{
    struct charge charge;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    /* Without a context no memory is taken yet, and the driver returns its own error. */
    if (charge_find_current(&charge, 0) != CUDA_SUCCESS ||
        likely(!__atomic_load_n(&shim.region.extra_total[charge.device], __ATOMIC_RELAXED)))
        return CUDA_SUCCESS;
    return charge_device(charge.device, 0);
}

#define LOAD(symbol, ...)                                                    \
    do {                                                                     \
        CUresult result = check_room();                                      \
                                                                             \
        return result == CUDA_SUCCESS ? driver.symbol(__VA_ARGS__) : result; \
    } while (0)

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                           void **values, unsigned int count, CUlibraryOption *library_options,
                           void **library_values, unsigned int library_count)
{
    LOAD(cuLibraryLoadData, library, code, options, values, count, library_options, library_values,
         library_count);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned int count, CUlibraryOption *library_options,
                               void **library_values, unsigned int library_count)
{
    LOAD(cuLibraryLoadFromFile, library, path, options, values, count, library_options,
         library_values, library_count);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    LOAD(cuModuleLoad, module, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    LOAD(cuModuleLoadData, module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
    LOAD(cuModuleLoadDataEx, module, image, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    LOAD(cuModuleLoadFatBinary, module, image);
}
