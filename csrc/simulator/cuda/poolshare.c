/* SPDX-License-Identifier: Apache-2.0 */
/* poolshare.c -- export and import of pools and of their blocks.
 *
 * The pool is one share. While another process has a block of it open it does not shrink; after its
 * owner's death it is kept as a whole until no process has any of it.
 */
#include <string.h>

#include "cuda/handle.h"
#include "cuda/import.h"
#include "cuda/pool.h"
#include "share.h"

#define BLOCK_MAGIC UINT64_C(0x7076677562c0c1)

_Static_assert(sizeof(struct place) == sizeof(CUmemPoolPtrExportData), "it fills the data");

/* Lock held. */
static bool make_share(struct pool *pool)
{
    if (!pool->reserve.share)
        pool->reserve.share = share_make(process.machine,
                                         &(struct share_order) {
                                             .slot = process.slot,
                                             .device = pool->reserve.device,
                                             .kind = SHARE_POOL,
                                             .bytes = pool->reserve.reserved,
                                             .size = 1,
                                         }) +
                              1;
    return pool->reserve.share;
}

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags)
{
    struct pool *found;
    bool is_shared;

    ENTER();
    found = pool_find(pool);
    REQUIRE(handle_out && found && !flags && handleType && !found->is_destroyed &&
            (found->handle_types & handleType) == handleType);
    pthread_mutex_lock(&pool_lock);
    is_shared = make_share(found);
    pthread_mutex_unlock(&pool_lock);
    if (!is_shared)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return handle_export(found->reserve.share - 1, handleType, handle_out);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags)
{
    struct pool *made;
    CUresult result;
    void *holder;
    uint64_t id;
    int share;

    ENTER();
    REQUIRE(pool_out && !flags &&
            (handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
             (handleType == CU_MEM_HANDLE_TYPE_FABRIC && handle)));
    result = handle_import(handle, handleType, &share, &id);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(share_read(process.machine, share)->kind == SHARE_POOL);
    holder = share_hold(process.machine, share, id, false);
    REQUIRE(holder);
    pthread_mutex_lock(&pool_lock);
    made = pool_add(POOL_ON_DEVICE, share_read(process.machine, share)->device);
    if (made)
        made->holder = holder;
    pthread_mutex_unlock(&pool_lock);
    if (!made) {
        share_let_go(process.machine, holder);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pool_out = (CUmemoryPool) made;
    return CUDA_SUCCESS;
}

CUresult pool_close_import(struct pool *pool)
{
    void *holder = pool->holder;

    pthread_mutex_lock(&pool_lock);
    pool->magic = 0;
    pool->holder = NULL;
    pthread_mutex_unlock(&pool_lock);
    share_let_go(process.machine, holder);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    struct memory_info info;
    const struct pool *pool;
    struct place place;
    CUresult result;

    ENTER();
    REQUIRE(shareData_out && memory_find(ptr, &info) && info.kind == MEMORY_POOL && info.pool);
    pool = info.pool;
    REQUIRE(pool->reserve.share && info.base == ptr);
    result = import_find_place(ptr, pool->reserve.share - 1, BLOCK_MAGIC, &place);
    if (result == CUDA_SUCCESS)
        memcpy(shareData_out, &place, sizeof(place));
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData *shareData)
{
    const struct pool *found;
    struct place place;
    CUresult result;

    ENTER();
    found = pool_find(pool);
    REQUIRE(ptr_out && found && found->holder && shareData);
    memcpy(&place, shareData, sizeof(place));
    result = import_check_place(&place, BLOCK_MAGIC);
    return result == CUDA_SUCCESS ? import_place(NULL, &place, ptr_out) : result;
}
