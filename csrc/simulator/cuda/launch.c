/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c -- checks a kernel launch and puts it into its stream. */
#include "cuda/launch.h"

#include <string.h>

#include "cuda/builtin.h"
#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/notice.h"

enum {
    THREADS_OF_BLOCK = 1024,
    THREADS_OF_SM = 2048,
    BLOCKS_OF_SM = 32,
    DEFAULT_SHARED = 48 << 10,
    WIDEST_GRID = 65535, /* in y and z */
    DEEPEST_BLOCK = 64,  /* in z */
};

void launch_plan(struct launch_function *function, const char *name)
{
    const struct machine_config *config = &process.machine->config;

    *function = (struct launch_function) {
        .name = name,
        .builtin = builtin_find(name),
        .ns = config->kernel_ns,
        .max_threads = THREADS_OF_BLOCK,
        .dynamic_shared_bytes = DEFAULT_SHARED,
    };
    for (size_t i = 0; i < config->kernel_count; i++)
        if (!strcmp(config->kernels[i].name, name))
            function->ns = config->kernels[i].ns;
}

static CUresult check(const struct launch *launch, const struct launch_function *function)
{
    const unsigned int *grid = launch->grid;
    const unsigned int *block = launch->block;
    uint64_t threads = (uint64_t) block[0] * block[1] * block[2];

    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return CUDA_ERROR_INVALID_VALUE;
    if (grid[0] > INT32_MAX || grid[1] > WIDEST_GRID || grid[2] > WIDEST_GRID)
        return CUDA_ERROR_INVALID_VALUE;
    if (block[0] > THREADS_OF_BLOCK || block[1] > THREADS_OF_BLOCK || block[2] > DEEPEST_BLOCK ||
        threads > THREADS_OF_BLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    if (launch->shared_bytes > function->dynamic_shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (launch->parameters && launch->extra)
        return CUDA_ERROR_INVALID_VALUE;
    return threads > function->max_threads ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

/* The packed buffer of the arguments in extra, a list of names and values. */
static bool read_extra(void *const *extra, const void **packed, size_t *size)
{
    *packed = NULL;
    *size = 0;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *packed = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *size = extra[1] ? *(const size_t *) extra[1] : 0;
        else
            return false;
    }
    return true;
}

static CUresult take_arguments(const struct launch *launch, enum builtin builtin,
                               uint64_t *arguments)
{
    const void *packed;
    size_t size;

    if (!read_extra(launch->extra, &packed, &size))
        return CUDA_ERROR_INVALID_VALUE;
    if (builtin == BUILTIN_NONE)
        return CUDA_SUCCESS;
    return builtin_arguments(builtin, launch->parameters, packed, size, arguments)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult launch_order(struct work_context *work, const struct launch *launch,
                      struct work_order *order)
{
    const struct device_config *config = &process.machine->config.devices[work->device];
    const struct launch_function *function = module_launch_function(launch->function);
    uint64_t blocks = (uint64_t) launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t arguments[BUILTIN_ARGUMENTS];
    uint64_t together; /* blocks of an SM */
    CUresult result;

    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    result = check(launch, function);
    if (result == CUDA_SUCCESS)
        result = take_arguments(launch, function->builtin, arguments);
    if (result != CUDA_SUCCESS)
        return result;
    together = THREADS_OF_SM / (launch->block[0] * launch->block[1] * launch->block[2]);
    if (together > BLOCKS_OF_SM)
        together = BLOCKS_OF_SM;
    if (launch->cooperative && blocks > together * config->sm_count)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    blocks = (blocks + together - 1) / together;
    *order = (struct work_order) {
        .engine = ENGINE_SM,
        .ns = function->ns,
        .units = blocks < config->sm_count ? (uint32_t) blocks : config->sm_count,
        .effect = {.work = work},
    };
    if (function->builtin == BUILTIN_NONE)
        notice_kernel(function->name);
    else
        builtin_order(function->builtin, arguments, config, order);
    order->ns += process.machine->config.law.launch_ns;
    return CUDA_SUCCESS;
}

CUresult launch_submit(struct stream *stream, const struct launch *launch)
{
    struct work_order order;
    CUresult result = launch_order(stream->work, launch, &order);

    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return capture_add_launch(stream, launch);
    if (order.units > stream->most_units)
        order.units = stream->most_units;
    return queue_submit(stream, &order, NULL);
}

static CUresult launch_with(struct stream *stream, const CUlaunchConfig *config, CUfunction f,
                            void **parameters, void **extra)
{
    struct launch launch;

    REQUIRE(config && (config->attrs || !config->numAttrs));
    launch = (struct launch) {
        .function = f,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .parameters = parameters,
        .extra = extra,
    };
    for (unsigned int i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            launch.cooperative = config->attrs[i].value.cooperative;
    return launch_submit(stream, &launch);
}

#define LAUNCH(...) launch_submit(stream, &(struct launch) {__VA_ARGS__})

STREAM_CALL(cuLaunchKernel,
            (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
            LAUNCH(f, {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ},
                   sharedMemBytes, false, kernelParams, extra))

STREAM_CALL(cuLaunchCooperativeKernel,
            (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
            LAUNCH(f, {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ},
                   sharedMemBytes, true, kernelParams, NULL))

TWO_FORMS(cuLaunchKernelEx, _ptsz, config ? config->hStream : NULL,
          (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
          launch_with(stream, config, f, kernelParams, extra))

/* Each kernel begins when its own stream reaches it, as if both flags were set: none waits for the
 * streams of the others. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                              unsigned int numDevices, unsigned int flags)
{
    struct stream *streams[CONFIG_DEVICES];

    ENTER();
    REQUIRE(launchParamsList && numDevices && numDevices <= CONFIG_DEVICES && flags <= 3);
    for (unsigned int i = 0; i < numDevices; i++) {
        CUresult result = stream_enter_again(launchParamsList[i].hStream, false, &streams[i]);

        if (result != CUDA_SUCCESS)
            return result;
        REQUIRE(launchParamsList[i].hStream > CU_STREAM_PER_THREAD);
        for (unsigned int j = 0; j < i; j++)
            REQUIRE(streams[j]->work->device != streams[i]->work->device);
    }
    for (unsigned int i = 0; i < numDevices; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launchParamsList[i];
        struct launch launch = {
            .function = one->function,
            .grid = {one->gridDimX, one->gridDimY, one->gridDimZ},
            .block = {one->blockDimX, one->blockDimY, one->blockDimZ},
            .shared_bytes = one->sharedMemBytes,
            .cooperative = true,
            .parameters = one->kernelParams,
        };
        CUresult result = launch_submit(streams[i], &launch);

        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
