/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c -- hooks that launch kernels: each pays the cost of its function and grid. */
#include "shim/cuda/context/context.h"
#include "shim/cuda/work/pace.h"
#include "shim/driver.h"

/* A shape is a function with its grid, block and shared memory. */
static struct costs_key key_of(CUfunction function, uint64_t blocks, uint64_t threads,
                               uint64_t shared_bytes)
{
    return costs_key((uintptr_t) function, blocks ^ threads << 44 ^ shared_bytes << 24);
}

#define KEY(function, x, y, z, block_x, block_y, block_z, shared)                              \
    key_of(function, (uint64_t) (x) * (y) * (z), (uint64_t) (block_x) * (block_y) * (block_z), \
           shared)

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **params, void **extra)
{
    PACED(pace_begin(&work,
                     KEY(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes),
                     COSTS_GUESS_NS, STREAM_LEGACY(stream)),
          cuLaunchKernel, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
          stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                             void **params, void **extra)
{
    PACED(pace_begin(&work,
                     KEY(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes),
                     COSTS_GUESS_NS, STREAM_PER_THREAD(stream)),
          cuLaunchKernel_ptsz, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
          shared_bytes, stream, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void **params)
{
    PACED(pace_begin(&work,
                     KEY(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes),
                     COSTS_GUESS_NS, STREAM_LEGACY(stream)),
          cuLaunchCooperativeKernel, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
          shared_bytes, stream, params);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
                                        unsigned int grid_y, unsigned int grid_z,
                                        unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes,
                                        CUstream stream, void **params)
{
    PACED(pace_begin(&work,
                     KEY(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes),
                     COSTS_GUESS_NS, STREAM_PER_THREAD(stream)),
          cuLaunchCooperativeKernel_ptsz, function, grid_x, grid_y, grid_z, block_x, block_y,
          block_z, shared_bytes, stream, params);
}

static struct costs_key key_with(const CUlaunchConfig *config, CUfunction function)
{
    return config ? KEY(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                        config->blockDimX, config->blockDimY, config->blockDimZ,
                        config->sharedMemBytes)
                  : key_of(function, 0, 0, 0);
}

static CUstream stream_with(const CUlaunchConfig *config)
{
    return config ? config->hStream : NULL;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra)
{
    PACED(pace_begin(&work, key_with(config, function), COSTS_GUESS_NS,
                     STREAM_LEGACY(stream_with(config))),
          cuLaunchKernelEx, config, function, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params,
                               void **extra)
{
    PACED(pace_begin(&work, key_with(config, function), COSTS_GUESS_NS,
                     STREAM_PER_THREAD(stream_with(config))),
          cuLaunchKernelEx_ptsz, config, function, params, extra);
}

/* The forms from before CUDA 4, whose block size and arguments are set on the function. */

CUresult cuLaunch(CUfunction function)
{
    PACED(pace_begin(&work, key_of(function, 1, 0, 0), COSTS_GUESS_NS, STREAM_LEGACY(NULL)),
          cuLaunch, function);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    PACED(pace_begin(&work, key_of(function, (uint64_t) (unsigned) width * (unsigned) height, 0, 0),
                     COSTS_GUESS_NS, STREAM_LEGACY(NULL)),
          cuLaunchGrid, function, width, height);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    PACED(pace_begin(&work, key_of(function, (uint64_t) (unsigned) width * (unsigned) height, 0, 0),
                     COSTS_GUESS_NS, STREAM_LEGACY(stream)),
          cuLaunchGridAsync, function, width, height, stream);
}

/* One kernel of a multi-device launch. Each is on a stream of another device, whose context need
 * not be current; but the device of the current context pays, so push the stream's context. */
static CUresult on_its_device(struct pace_work *work, const CUDA_LAUNCH_PARAMS *launch, int paid)
{
    struct costs_key key =
        KEY(launch->function, launch->gridDimX, launch->gridDimY, launch->gridDimZ,
            launch->blockDimX, launch->blockDimY, launch->blockDimZ, launch->sharedMemBytes);
    struct stream stream = STREAM_LEGACY(launch->hStream);
    CUcontext context;
    int pushed = driver.cuStreamGetCtx(launch->hStream, &context) == CUDA_SUCCESS &&
                 driver.cuCtxPushCurrent_v2(context_to_push(context)) == CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;

    if (paid)
        pace_give(work, &key, COSTS_GUESS_NS);
    else
        result = pace_pay(work, &key, COSTS_GUESS_NS, &stream);
    if (pushed)
        driver.cuCtxPopCurrent_v2(&context);
    return result;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags)
{
    struct pace_work works[REGION_DEVICES];
    unsigned paid = 0;
    CUresult result =
        throttling.state == THROTTLING_CLOSED ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;

    if (pace_is_free())
        return driver.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    for (; list && paid < count && paid < REGION_DEVICES && result == CUDA_SUCCESS; paid++)
        result = on_its_device(&works[paid], &list[paid], 0);
    if (result != CUDA_SUCCESS)
        return result; /* the driver got nothing: the time paid is left for the next launches */
    for (unsigned i = 0; i < paid; i++)
        on_its_device(&works[i], &list[i], 1);
    result = driver.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    while (paid > 0)
        pace_end(&works[--paid], result);
    return result;
}
