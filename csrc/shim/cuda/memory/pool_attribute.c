/* SPDX-License-Identifier: Apache-2.0 */
/* pool_attribute.c -- hooks of pool attributes and access, which fail once the pool is destroyed.
 */
#include "shim/cuda/memory/pool.h"
#include "shim/driver.h"

CUresult pool_may_ask(CUmemoryPool handle)
{
    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    return pool_is_destroyed(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute name, void *value)
{
    CUresult refused = pool_may_ask(handle);

    return refused ? refused : driver.cuMemPoolSetAttribute(handle, name, value);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute name, void *value)
{
    CUresult refused = pool_may_ask(handle);

    return refused ? refused : driver.cuMemPoolGetAttribute(handle, name, value);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    CUresult refused = pool_may_ask(handle);

    return refused ? refused : driver.cuMemPoolSetAccess(handle, map, count);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    CUresult refused = pool_may_ask(handle);

    return refused ? refused : driver.cuMemPoolGetAccess(flags, handle, location);
}
