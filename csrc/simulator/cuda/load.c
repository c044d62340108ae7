/* SPDX-License-Identifier: Apache-2.0 */
/* load.c -- the API of modules, which belong to the context they were loaded in. */
#include "module.h"

static CUresult load(CUmodule *module, const void *data, const char *path)
{
    struct work_context *work;
    struct CUlib_st *library;
    CUresult result = process_enter_context(&work);

    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(module && (data || path));
    result = module_open_library(data, path, &library);
    if (result != CUDA_SUCCESS)
        return result;
    library->goes_with_module = true;
    result = module_open(library, work, module);
    if (result != CUDA_SUCCESS)
        module_close_library(library);
    return result;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    ENTER();
    return load(module, NULL, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER();
    return load(module, image, NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
    ENTER();
    module_answer_options(count, options, values);
    return load(module, image, NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    ENTER();
    return load(module, image, NULL);
}

CUresult cuModuleUnload(CUmodule module)
{
    ENTER();
    return module_close(module);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    ENTER();
    REQUIRE(mode);
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

/* The index of a name among the image's kernels or variables, the same in its modules; -1: none. */
static long kernel_index(const struct image *image, const char *name)
{
    const struct image_kernel *kernel = image_find_kernel(image, name);

    return kernel ? kernel - image->kernels : -1;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    struct CUmod_st *module;
    CUresult result;
    long index;

    ENTER();
    REQUIRE(function && name && *name);
    result = module_find(handle, &module);
    if (result != CUDA_SUCCESS)
        return result;
    index = kernel_index(&module->library->image, name);
    if (index < 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction) &module->functions[index];
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
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

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule handle)
{
    struct CUmod_st *module;
    CUresult result;

    ENTER();
    REQUIRE(functions && count);
    result = module_find(handle, &module);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = 0; i < count; i++)
        functions[i] =
            i < module->library->image.kernel_count ? (CUfunction) &module->functions[i] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
                              const char *name)
{
    struct CUmod_st *module;
    const struct image_variable *variable;
    CUresult result;

    ENTER();
    REQUIRE(name && (address || bytes));
    result = module_find(handle, &module);
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

/* CUDA 12 removed texture and surface references: images have none. */
CUresult cuModuleGetTexRef(CUtexref *reference, CUmodule handle, const char *name)
{
    ENTER();
    REQUIRE(reference && name);
    return module_find_library(handle) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetSurfRef(CUsurfref *reference, CUmodule handle, const char *name)
{
    ENTER();
    REQUIRE(reference && name);
    return module_find_library(handle) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}
