/* SPDX-License-Identifier: Apache-2.0 */
/* poolobject.c -- memory pool objects: create, destroy, default and current pool of a location. */
#include "cuda/placement.h"
#include "cuda/pool.h"

static struct pool *defaults[POOL_HOMES][CONFIG_DEVICES];
static struct pool *chosen[POOL_HOMES][CONFIG_DEVICES];

static struct pool *default_pool(enum pool_home home, uint32_t device)
{
    struct pool **pool = &defaults[home][device];

    pthread_mutex_lock(&pool_lock);
    if (!*pool) {
        *pool = chosen[home][device] = pool_add(home, device);
        if (*pool)
            (*pool)->is_default = true;
    }
    pthread_mutex_unlock(&pool_lock);
    return *pool;
}

struct pool *pool_chosen(enum pool_home home, uint32_t device)
{
    struct pool *pool = default_pool(home, device);

    pthread_mutex_lock(&pool_lock);
    if (pool)
        pool = chosen[home][device];
    pthread_mutex_unlock(&pool_lock);
    return pool;
}

static CUresult give_pool(CUmemoryPool *handle, struct pool *pool)
{
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemoryPool) pool;
    return CUDA_SUCCESS;
}

static CUresult set_pool(enum pool_home home, uint32_t device, CUmemoryPool pool)
{
    struct pool *found = pool_find(pool);

    REQUIRE(found && found->home == home && found->reserve.device == device && !found->holder &&
            default_pool(home, device));
    pthread_mutex_lock(&pool_lock);
    chosen[home][device] = found;
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    ENTER();
    REQUIRE(pool_out);
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return give_pool(pool_out, default_pool(POOL_ON_DEVICE, (uint32_t) process_device(dev)));
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    ENTER();
    REQUIRE(pool);
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return give_pool(pool, pool_chosen(POOL_ON_DEVICE, (uint32_t) process_device(dev)));
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    ENTER();
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return set_pool(POOL_ON_DEVICE, (uint32_t) process_device(dev), pool);
}

/* The home of a pool of that type and location. Host memory, and managed memory that is on no
 * device in particular, are counted with the first device and not charged.
 */
static CUresult find_home(const CUmemLocation *location, CUmemAllocationType type,
                          enum pool_home *home, uint32_t *device)
{
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;

    REQUIRE(location && (is_managed || type == CU_MEM_ALLOCATION_TYPE_PINNED));
    *device = 0;
    *home = POOL_ON_HOST;
    switch ((int) location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (process_device(location->id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        *device = (uint32_t) process_device(location->id);
        *home = is_managed ? POOL_MANAGED : POOL_ON_DEVICE;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return is_managed && location->type == CU_MEM_LOCATION_TYPE_NONE ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool_out);
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? give_pool(pool_out, default_pool(home, device)) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool);
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? give_pool(pool, pool_chosen(home, device)) : result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? set_pool(home, device, pool) : result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    enum pool_home home;
    struct pool *made;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool && poolProps);
    result = find_home(&poolProps->location, poolProps->allocType, &home, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (poolProps->handleTypes & ~(unsigned int) (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                                  CU_MEM_HANDLE_TYPE_FABRIC) ||
        (poolProps->handleTypes && home != POOL_ON_DEVICE))
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&pool_lock);
    made = pool_add(home, device);
    if (made) {
        made->reserve.most = poolProps->maxSize;
        made->handle_types = poolProps->handleTypes;
    }
    pthread_mutex_unlock(&pool_lock);
    return give_pool(pool, made);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && !found->is_default && !found->is_destroyed);
    if (found->holder)
        return pool_close_import(found);
    if (placement_has(found))
        placement_shrink(found, 0);
    pthread_mutex_lock(&pool_lock);
    found->is_destroyed = true;
    if (chosen[found->home][found->reserve.device] == found)
        chosen[found->home][found->reserve.device] = defaults[found->home][found->reserve.device];
    if (!placement_has(found) || !found->reserve.reserved)
        pool_note_unused(found, 0);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found);
    if (placement_has(found)) {
        placement_shrink(found, minBytesToKeep);
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&pool_lock);
    reserve_shrink(&found->reserve, minBytesToKeep);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}
