/* SPDX-License-Identifier: Apache-2.0 */
/* memory_info.c -- hooks of memory size queries, which report the quota as the device's memory. */
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/memory/pool_charge.h"
#include "shim/cuda/memory/link.h"
#include "shim/driver.h"

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    struct context *known = NULL;
    CUcontext handle = NULL;
    CUresult result;
    uint64_t limit;
    uint64_t used;
    int device = -1;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuCtxGetCurrent(&handle);
    if (result == CUDA_SUCCESS && handle) {
        known = context_find(handle);
        device = known ? (int) known->device : context_device(handle);
    }
    if (unlikely(!available || !total || !known)) {
        size_t ignored;

        /* Return the driver's own error, but never the whole device's figures. A primary context
         * that was reset stays current, and only the driver knows that it can no longer be used. */
        result = driver.cuMemGetInfo_v2(available ? &ignored : NULL, total ? &ignored : NULL);
        if (result != CUDA_SUCCESS || device < 0)
            return result;
    }
    shim_watch_limits();
    deferred_free_settle();
    pool_charge_reread(device);
    limit = __atomic_load_n(&shim.ledger.limit[device], __ATOMIC_RELAXED);
    used = ledger_used(&shim.ledger, (unsigned) device);
    if (unlikely(link_collect((unsigned) device))) /* also memory that dead processes had open */
        used = ledger_used(&shim.ledger, (unsigned) device);
    if (available)
        *available = used < limit ? limit - used : 0;
    if (total)
        *total = limit;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    int device = shim_device(ordinal);

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!bytes || device < 0)
        return driver.cuDeviceTotalMem_v2(bytes, ordinal);
    shim_watch_limits();
    *bytes = __atomic_load_n(&shim.ledger.limit[device], __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
