/* SPDX-License-Identifier: Apache-2.0 */
/* poolattribute.c -- what memory pools say of themselves, and who may reach them. */
#include "cuda/pool.h"

/* Where a pool has an attribute that is an int, or one that is a cuuint64_t; NULL: it is not one of
 * those.
 */
static int *flag_of(struct pool *pool, CUmemPool_attribute attr)
{
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return &pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    default:
        return NULL;
    }
}

static uint64_t *bytes_of(struct pool *pool, CUmemPool_attribute attr)
{
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserve.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserve.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->reserve.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->reserve.used_high;
    default:
        return NULL;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value && (flag_of(found, attr) || bytes_of(found, attr)));
    pthread_mutex_lock(&pool_lock);
    if (flag_of(found, attr))
        *(int *) value = *flag_of(found, attr);
    else
        *(cuuint64_t *) value = *bytes_of(found, attr);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

/* A high-water mark can only be set to 0. */
static CUresult lower(uint64_t *high, uint64_t now, const cuuint64_t *value)
{
    REQUIRE(!*value);
    *high = now;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    CUresult result = CUDA_SUCCESS;
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value);
    pthread_mutex_lock(&pool_lock);
    if (flag_of(found, attr))
        *flag_of(found, attr) = *(int *) value;
    else if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        found->threshold = *(cuuint64_t *) value;
    else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        result = lower(&found->reserve.reserved_high, found->reserve.reserved, value);
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        result = lower(&found->reserve.used_high, found->reserve.used, value);
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&pool_lock);
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    const struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && (map || !count));
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (process_device(map[i].location.id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        /* The device of the pool itself cannot lose its access. */
        if (process_device(map[i].location.id) == (int) found->reserve.device &&
            map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    const struct pool *found;

    ENTER();
    found = pool_find(memPool);
    REQUIRE(flags && found && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    *flags = process_device(location->id) == (int) found->reserve.device
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
