/* SPDX-License-Identifier: Apache-2.0 */
/* occupancy.c -- occupancy: how many blocks of a kernel fit on an SM. */
#include "attribute.h"
#include "module.h"

enum {
    WARP = 32,
    REGISTER_UNIT = 256, /* registers are allocated to warps in this unit */
    SHARED_UNIT = 128,
};

static int smaller(int left, int right)
{
    return left < right ? left : right;
}

static int round_up(int value, int unit)
{
    return (value + unit - 1) / unit * unit;
}

static const struct device_config *current_device(void)
{
    struct work_context *work = current_context();

    return work ? process_device_config(work->ordinal) : NULL;
}

/* Blocks of block_size threads that one SM takes at once; 0 if not even one fits. */
static int blocks_per_sm(const struct device_config *config, const struct function *function,
                         int block_size, size_t dynamic_bytes)
{
    int warps = round_up(block_size, WARP) / WARP;
    int registers = round_up((int) function->kernel->registers * WARP, REGISTER_UNIT) * warps;
    int per_sm = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    int reserved = attribute_value(config, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    int blocks = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    int shared;

    if (block_size > (int) function->launch.max_threads ||
        dynamic_bytes > function->launch.dynamic_shared_bytes)
        return 0;
    shared = round_up((int) function->kernel->shared_bytes + (int) dynamic_bytes + reserved,
                      SHARED_UNIT);
    blocks = smaller(blocks,
                     attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) /
                         (warps * WARP));
    if (registers > 0)
        blocks = smaller(
            blocks, attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR) /
                        registers);
    if (shared > 0)
        blocks = smaller(blocks, per_sm / shared);
    return blocks;
}

static CUresult active_blocks(int *blocks, CUfunction handle, int block_size, size_t dynamic_bytes,
                              unsigned int flags)
{
    const struct function *function = module_function(handle);
    const struct device_config *config = current_device();

    REQUIRE(blocks && block_size > 0);
    if (flags & ~(unsigned int) CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!config)
        return CUDA_ERROR_INVALID_CONTEXT;
    *blocks = blocks_per_sm(config, function, block_size, dynamic_bytes);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                     int block_size, size_t dynamic_bytes)
{
    ENTER();
    return active_blocks(blocks, function, block_size, dynamic_bytes, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                              int block_size, size_t dynamic_bytes,
                                                              unsigned int flags)
{
    ENTER();
    return active_blocks(blocks, function, block_size, dynamic_bytes, flags);
}

/* The largest block that keeps the most threads on an SM. */
static CUresult best_block(int *grid_size, int *block_size, CUfunction handle,
                           CUoccupancyB2DSize to_dynamic_bytes, size_t dynamic_bytes, int limit,
                           unsigned int flags)
{
    const struct function *function = module_function(handle);
    const struct device_config *config = current_device();
    int most = 0;
    int best = 0;
    int best_blocks = 0;

    REQUIRE(grid_size && block_size && limit >= 0);
    if (flags & ~(unsigned int) CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!config)
        return CUDA_ERROR_INVALID_CONTEXT;
    most = (int) function->launch.max_threads;
    if (limit)
        most = smaller(most, limit);
    for (int size = round_up(most, WARP); size > 0; size -= WARP) {
        int threads = smaller(size, most);
        size_t bytes = to_dynamic_bytes ? to_dynamic_bytes(threads) : dynamic_bytes;
        int blocks = blocks_per_sm(config, function, threads, bytes);

        if (blocks * threads > best_blocks * best) {
            best = threads;
            best_blocks = blocks;
        }
    }
    *block_size = best;
    *grid_size = best_blocks * (int) config->sm_count;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
                                          CUoccupancyB2DSize to_dynamic_bytes, size_t dynamic_bytes,
                                          int limit)
{
    ENTER();
    return best_block(grid_size, block_size, function, to_dynamic_bytes, dynamic_bytes, limit, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size,
                                                   CUfunction function,
                                                   CUoccupancyB2DSize to_dynamic_bytes,
                                                   size_t dynamic_bytes, int limit,
                                                   unsigned int flags)
{
    ENTER();
    return best_block(grid_size, block_size, function, to_dynamic_bytes, dynamic_bytes, limit,
                      flags);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks,
                                                 int block_size)
{
    const struct function *function;
    const struct device_config *config = NULL;
    int share;

    ENTER();
    REQUIRE(bytes && blocks > 0 && block_size > 0);
    function = module_function(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    config = current_device();
    if (!config)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (blocks > blocks_per_sm(config, function, block_size, 0))
        return CUDA_ERROR_INVALID_VALUE;
    share = attribute_value(config, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) /
            blocks / SHARED_UNIT * SHARED_UNIT;
    share -= attribute_value(config, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK) +
             (int) function->kernel->shared_bytes;
    *bytes = (size_t) smaller(share > 0 ? share : 0, (int) function->launch.dynamic_shared_bytes);
    return CUDA_SUCCESS;
}

/* Clusters exist from sm_90 on, of at most 8 blocks on every device. */
CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction handle,
                                            const CUlaunchConfig *launch)
{
    enum { PORTABLE_CLUSTER = 8 };
    const struct device_config *config = NULL;

    ENTER();
    REQUIRE(size && launch);
    if (!module_function(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    config = current_device();
    if (!config)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!attribute_value(config, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
        return CUDA_ERROR_NOT_SUPPORTED;
    *size = PORTABLE_CLUSTER;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle,
                                      const CUlaunchConfig *launch)
{
    const struct function *function;
    const struct device_config *config = NULL;
    unsigned int cluster = 1;
    uint64_t threads;

    ENTER();
    REQUIRE(clusters && launch);
    function = module_function(handle);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    config = current_device();
    if (!config)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!attribute_value(config, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; launch->attrs && i < launch->numAttrs; i++)
        if (launch->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cluster = launch->attrs[i].value.clusterDim.x * launch->attrs[i].value.clusterDim.y *
                      launch->attrs[i].value.clusterDim.z;
    threads = (uint64_t) launch->blockDimX * launch->blockDimY * launch->blockDimZ;
    if (!cluster || !threads || threads > function->launch.max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    *clusters = (int) ((unsigned int) blocks_per_sm(config, function, (int) threads,
                                                    launch->sharedMemBytes) *
                       config->sm_count / cluster);
    return CUDA_SUCCESS;
}
