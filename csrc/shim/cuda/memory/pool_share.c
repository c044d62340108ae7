/* SPDX-License-Identifier: Apache-2.0 */
/* pool_share.c -- hooks that share pools between processes: pools by handle, blocks by export data.
 *
 * The owner is charged for what a pool holds. After the owner's death that stays charged while a
 * process has the pool, a block of it or a descriptor of it open. An imported pool holds nothing:
 * no memory can be allocated from it. A block is a part of its pool: so a process that imports a
 * block from another container's pool pays for the block.
 */
#include "shim/cuda/memory/pool_share.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/pool.h"
#include "shim/cuda/memory/share.h"
#include "shim/driver.h"
#include "core/shared_memory.h"

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
    if (!pool)
        return result;
    do /* repeated, with its link, if another thread was faster */
        link = share_offer(__atomic_load_n(&pool->growth.link, __ATOMIC_ACQUIRE),
                           pool->growth.device, 0, shareable, type);
    while (link && !pool_charge_export(&pool->growth, link));
    return link ? CUDA_SUCCESS : share_take_back(shareable, type);
}

/* The driver imported a pool; *link* is its import if it belongs to this container. */
static CUresult enter(CUmemoryPool handle, link_t link)
{
    struct allocation pool = {
        .address = (uint64_t) (uintptr_t) handle, .link = link, .kind = ALLOCATION_POOL};

    return link ? charge_result(entry_insert(&pool)) : CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
    struct allocation opened = {.kind = ALLOCATION_POOL};
    struct shared shared;
    CUresult result;
    void *held;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle)
        return driver.cuMemPoolImportFromShareableHandle(handle, shareable, type, flags);
    held = share_hold(&shared, shareable, type);
    share_find(&shared, &opened);
    result = opened.bytes ? CUDA_ERROR_OUT_OF_MEMORY /* its export is ending */
                          : driver.cuMemPoolImportFromShareableHandle(handle, held, type, flags);
    if (result == CUDA_SUCCESS) {
        result = enter(*handle, opened.link);
        if (result != CUDA_SUCCESS)
            driver.cuMemPoolDestroy(*handle);
    }
    if (result != CUDA_SUCCESS)
        shared_memory_end_import(&shim.region, opened.link);
    share_let_go(&shared);
    return result;
}

CUresult pool_share_destroy(CUmemoryPool handle)
{
    struct allocation pool;
    int known = allocations_take(ALLOCATION_POOL, (uint64_t) (uintptr_t) handle, &pool);
    CUresult result = driver.cuMemPoolDestroy(handle);

    if (known)
        entry_freed(&pool, result);
    return result;
}

/* An import of the pool *handle*, if another process of this container pays for it; else 0. */
static link_t import_of(CUmemoryPool handle)
{
    struct allocation pool;

    if (!allocations_find(ALLOCATION_POOL, (uint64_t) (uintptr_t) handle, &pool))
        return 0;
    return share_import(shared_memory_key_of(&shim.region, pool.link));
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
    opened.link = import_of(handle);
    result = driver.cuMemPoolImportPointer(address, handle, data);
    if (result == CUDA_SUCCESS) {
        opened.address = *address;
        result = share_pay(&opened);
        if (result == CUDA_SUCCESS && entry_insert(&opened) != 0)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            return result;
        driver.cuMemFree_v2(*address);
    }
    entry_release(&opened);
    return result;
}
