/* SPDX-License-Identifier: Apache-2.0 */
/* poolattribute.c -- attributes of memory pools, and access to them by device. */
#include "cuda/pool.h"

/* The first three attributes are int, the next five cuuint64_t. */
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    const struct pool *found;
    CUresult result = CUDA_SUCCESS;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value);
    pthread_mutex_lock(&pool_lock);
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *) value = found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *) value = found->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *) value = found->reserve.reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *) value = found->reserve.reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *) value = found->reserve.used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *) value = found->reserve.used_high;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found;
    CUresult result = CUDA_SUCCESS;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value);
    pthread_mutex_lock(&pool_lock);
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *) value;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        found->threshold = *(cuuint64_t *) value;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* a high-water mark can only be set to 0 */
        if (*(cuuint64_t *) value)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            found->reserve.reserved_high = found->reserve.reserved;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *) value)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            found->reserve.used_high = found->reserve.used;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
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
