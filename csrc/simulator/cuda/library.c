/* SPDX-License-Identifier: Apache-2.0 */
/* library.c -- the API of libraries and kernels, which belong to no context. */
#include "module.h"

static CUresult load(CUlibrary *library, const void *data, const char *path)
{
    REQUIRE(library && (data || path));
    return module_open_library(data, path, library);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                           void **values, unsigned int count, CUlibraryOption *library_options,
                           void **library_values, unsigned int library_count)
{
    ENTER();
    (void) library_options; /* these only say how long the caller keeps the code; we copy it */
    (void) library_values;
    (void) library_count;
    module_answer_options(count, options, values);
    return load(library, code, NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned int count, CUlibraryOption *library_options,
                               void **library_values, unsigned int library_count)
{
    ENTER();
    (void) library_options;
    (void) library_values;
    (void) library_count;
    module_answer_options(count, options, values);
    return load(library, NULL, path);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER();
    return module_close_library(library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    struct CUlib_st *library;
    const struct image_kernel *found;

    ENTER();
    REQUIRE(kernel && name);
    library = module_find_library(handle);
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    found = image_find_kernel(&library->image, name);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    *kernel = (CUkernel) &library->kernels[found - library->image.kernels];
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle)
{
    struct CUlib_st *library;

    ENTER();
    REQUIRE(count);
    library = module_find_library(handle);
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned int) library->image.kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary handle)
{
    struct CUlib_st *library;

    ENTER();
    REQUIRE(kernels && count);
    library = module_find_library(handle);
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < count; i++)
        kernels[i] = i < library->image.kernel_count ? (CUkernel) &library->kernels[i] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER();
    REQUIRE(module);
    return module_find(library, module);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                            const char *name)
{
    struct CUmod_st *module;
    const struct image_variable *variable;
    CUresult result;

    ENTER();
    REQUIRE(name && (address || bytes));
    result = module_find(library, &module);
    if (result != CUDA_SUCCESS)
        return result;
    variable = image_find_variable(&module->library->image, name);
    if (!variable)
        return CUDA_ERROR_NOT_FOUND;
    if (address)
        *address = module->variables[variable - module->library->image.variables];
    if (bytes)
        *bytes = variable->bytes;
    return CUDA_SUCCESS;
}

/* Parsed images have no managed variables and no unified functions. */
CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                             const char *name)
{
    ENTER();
    REQUIRE(name && (address || bytes));
    return module_find_library(library) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetUnifiedFunction(void **entry, CUlibrary library, const char *name)
{
    ENTER();
    REQUIRE(entry && name);
    return module_find_library(library) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    const struct function *found;
    struct CUmod_st *module;
    CUresult result;

    ENTER();
    REQUIRE(function);
    found = module_function(kernel);
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    result = module_find(found->library, &module);
    if (result == CUDA_SUCCESS)
        *function = (CUfunction) &module->functions[found->kernel - found->library->image.kernels];
    return result;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    const struct function *found;

    ENTER();
    REQUIRE(library);
    found = module_function(kernel);
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = found->library;
    return CUDA_SUCCESS;
}
