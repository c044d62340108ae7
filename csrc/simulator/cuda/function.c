/* SPDX-License-Identifier: Apache-2.0 */
/* function.c -- attributes and settings of functions and kernels. */
#include "attribute.h"
#include "module.h"

#define ENTER_FUNCTION(function, handle)       \
    ENTER();                                   \
    do {                                       \
        *(function) = module_function(handle); \
        if (!*(function))                      \
            return CUDA_ERROR_INVALID_HANDLE;  \
    } while (0)

/* The device of the calling thread's context, or the first one. */
static const struct device_config *device_of_function(void)
{
    struct work_context *work = current_context();

    return process_device_config(work ? work->ordinal : 0);
}

static CUresult get(const struct function *function, const struct device_config *config, int *value,
                    CUfunction_attribute attribute)
{
    const struct image *image = &function->library->image;

    switch ((int) attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int) function->launch.max_threads;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int) function->kernel->shared_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *value = (int) function->kernel->constant_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int) function->kernel->local_bytes;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int) function->kernel->registers;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = (int) image->binary_version;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: /* PTX has been compiled for the device */
        *value = image->ptx_version
                     ? attribute_value(config, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                           attribute_value(config, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
                     : (int) image->binary_version;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = (int) function->launch.dynamic_shared_bytes;
        return CUDA_SUCCESS;
    default:
        if ((int) attribute < 0 || (int) attribute >= FUNCTION_SETTINGS)
            return CUDA_ERROR_INVALID_VALUE;
        *value = function->settings[attribute];
        return CUDA_SUCCESS;
    }
}

static CUresult set(struct function *function, const struct device_config *config,
                    CUfunction_attribute attribute, int value)
{
    int most = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

    switch ((int) attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > most - (int) function->kernel->shared_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        function->launch.dynamic_shared_bytes = (uint32_t) value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        function->settings[attribute] = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (value < 0)
            return CUDA_ERROR_INVALID_VALUE;
        function->settings[attribute] = value;
        return CUDA_SUCCESS;
    default: /* the others are read-only */
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* A kernel stands for its functions in all contexts: set them, too. */
static CUresult set_kernel(struct function *kernel, const struct device_config *config,
                           CUfunction_attribute attribute, int value)
{
    size_t index = (size_t) (kernel->kernel - kernel->library->image.kernels);
    CUresult result = set(kernel, config, attribute, value);

    for (struct CUmod_st *module = kernel->library->modules; module && result == CUDA_SUCCESS;
         module = module->next)
        result = set(&module->functions[index], config, attribute, value);
    return result;
}

static CUresult parameter_info(const struct function *function, size_t index, size_t *offset,
                               size_t *size)
{
    REQUIRE(offset && index < function->kernel->parameter_count);
    *offset = function->kernel->parameters[index].offset;
    if (size)
        *size = function->kernel->parameters[index].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(value);
    return get(function, device_of_function(), value, attribute);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    return set(function, device_of_function(), attribute, value);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice device)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(value);
    if (!process_device_config(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return get(function, process_device_config(device), value, attribute);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice device)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    if (!process_device_config(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return set_kernel(function, process_device_config(device), attribute, value);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache cache)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    if ((int) cache < 0 || cache > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    function->cache = cache;
    return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache cache, CUdevice device)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    if (!process_device_config(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((int) cache < 0 || cache > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    function->cache = cache;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig shared)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    if ((int) shared < 0 || shared > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(module);
    if (function->module) {
        *module = function->module;
        return CUDA_SUCCESS;
    }
    return module_find(function->library, module);
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(name);
    *name = function->kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(name);
    *name = function->kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    return parameter_info(function, index, offset, size);
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    return parameter_info(function, index, offset, size);
}

CUresult cuFuncGetParamCount(CUfunction handle, size_t *count)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(count);
    *count = function->kernel->parameter_count;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamCount(CUkernel handle, size_t *count)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(count);
    *count = function->kernel->parameter_count;
    return CUDA_SUCCESS;
}

/* Everything is loaded with its module. */
CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    REQUIRE(state);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle)
{
    struct function *function;

    ENTER_FUNCTION(&function, handle);
    return CUDA_SUCCESS;
}
