/* SPDX-License-Identifier: Apache-2.0 */
/* poolshare.c -- hooks of pools that other processes have: the pool by a handle, its blocks by
 * data.
 *
 * A pool is charged for what it holds, and its owner goes on being. When the owner dies somebody
 * may have a block open, and who that is cannot be told from the pool; so what it held then stays
 * charged until no other process of the container is left. An imported pool holds nothing: no
 * memory can be allocated from it. Blocks have a key each, so that an importer of the container is
 * known from one of another, which pays for what it opens.
 */
#include "cuda/charge.h"
#include "cuda/pool.h"
#include "cuda/share.h"
#include "driver.h"
#include "links.h"

static uint64_t key_of(const CUmemPoolPtrExportData *data)
{
    return links_key(data, sizeof(*data));
}

/* No import has this key. */
static uint64_t pool_key(const struct pool *pool)
{
    const uint64_t described[] = {(uint64_t) (uintptr_t) pool, (uint64_t) shim.region.slot,
                                  clock_now_ns(CLOCK_MONOTONIC)};

    return links_key(described, sizeof(described));
}

CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
    struct pool *pool;
    CUresult result;
    link_t link;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (pool_is_destroyed(handle))
        return CUDA_ERROR_INVALID_VALUE;
    result = driver.cuMemPoolExportToShareableHandle(shareable, handle, type, flags);
    pool = result == CUDA_SUCCESS ? pool_find(handle) : NULL;
    if (!pool || __atomic_load_n(&pool->growth.link, __ATOMIC_ACQUIRE))
        return result;
    link = share_offer(pool_key(pool), pool->growth.device, 0, LINK_DESCRIPTOR);
    if (!link)
        return share_take_back(shareable, type);
    growth_export(&pool->growth, link);
    return CUDA_SUCCESS;
}

/* Where nothing can be written any more, who imports the block pays for it too. */
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    struct allocation block = {.address = address, .kind = ALLOCATION_BLOCK};
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuMemPoolExportPointer(data, address);
    if (result != CUDA_SUCCESS)
        return result;
    block.link = links_export(&shim.region, key_of(data), 0, 0, 0);
    if (block.link && charge_enter(&block) != 0)
        links_cancel_export(&shim.region, block.link);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle,
                                CUmemPoolPtrExportData *data)
{
    struct allocation opened = {.kind = ALLOCATION_LINEAR};
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!address || !data)
        return driver.cuMemPoolImportPointer(address, handle, data);
    opened.link = share_import(key_of(data));
    result = driver.cuMemPoolImportPointer(address, handle, data);
    if (result == CUDA_SUCCESS) {
        opened.address = *address;
        result = share_pay(&opened);
        if (result == CUDA_SUCCESS && charge_enter(&opened) != 0)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            return result;
        driver.cuMemFree_v2(*address);
    }
    charge_release(&opened);
    return result;
}
