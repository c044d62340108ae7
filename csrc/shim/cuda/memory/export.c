/* SPDX-License-Identifier: Apache-2.0 */
/* export.c -- hooks that export physical memory to other processes and import it; see export.h. */
#include "shim/cuda/memory/export.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/share.h"
#include "shim/driver.h"
#include "core/shared_memory.h"
#include "core/mutex.h"

#include <pthread.h>

/* Held while a record's link and charge are decided, not during driver calls. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Let others open *physical* by the handle in *shareable*; 0 if they must not. Memory from
 * elsewhere that is not mapped is not charged in this container. */
static int export_physical(struct physical *physical, const void *shareable,
                           CUmemAllocationHandleType type)
{
    struct allocation *charge = &physical->charge;
    int done = 1;

    mutex_lock(&lock, LOCK_EXPORTS);
    if (charge->bytes || charge->link) {
        link_t link = share_offer(charge->link, charge->device, charge->bytes, shareable, type);

        done = link != 0;
        if (done)
            charge->link = link;
    }
    mutex_unlock(&lock, LOCK_EXPORTS);
    return done;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    struct physical *physical;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    physical = physical_hold(handle);
    result = driver.cuMemExportToShareableHandle(shareable, physical_handle(physical, handle), type,
                                                 flags);
    if (!physical)
        return result;
    if (result == CUDA_SUCCESS && !export_physical(physical, shareable, type))
        result = share_take_back(shareable, type);
    physical_drop(physical);
    return result;
}

/* The location of imported memory. A multicast object has no properties, and takes no memory. */
static CUresult find_place(CUmemGenericAllocationHandle handle, int *place, int *is_multicast)
{
    CUmemAllocationProp properties;
    CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, handle);

    *place = PLACE_ON_HOST;
    *is_multicast = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE;
    if (*is_multicast)
        return CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        *place = physical_place(&properties.location);
    return *place == PLACE_NOWHERE ? CUDA_ERROR_NOT_SUPPORTED : result;
}

/* The driver imported the memory of *opened* as *handle*. */
static CUresult enter(CUmemGenericAllocationHandle handle, const struct allocation *opened)
{
    struct physical *physical = physical_hold(handle);
    CUresult result;
    int is_multicast;
    int place;

    if (physical) { /* this process has the handle: the driver counts one more reference to it */
        result = charge_result(physical_give_reference(physical));
        if (result == CUDA_SUCCESS)
            entry_release(opened);
        return result;
    }
    result = find_place(handle, &place, &is_multicast);
    if (result != CUDA_SUCCESS)
        return result;
    physical = physical_enter(handle, place >= 0 ? (unsigned) place : 0, opened->bytes);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->shared = 1;
    mutex_lock(&lock, LOCK_EXPORTS);
    physical->charge.link = opened->link;
    physical->foreign = place >= 0 && !opened->link;
    mutex_unlock(&lock, LOCK_EXPORTS);
    if (is_multicast || physical->foreign)
        physical_keep_in_place(physical);
    return CUDA_SUCCESS;
}

/* Import the held handle, whose memory was found to be *opened* and is charged. */
static CUresult import(CUmemGenericAllocationHandle *handle, void *held,
                       CUmemAllocationHandleType type, const struct allocation *opened)
{
    CUmemGenericAllocationHandle made;
    CUresult result = driver.cuMemImportFromShareableHandle(&made, held, type);

    if (result != CUDA_SUCCESS)
        return result;
    result = enter(made, opened);
    if (result == CUDA_SUCCESS)
        *handle = made;
    else
        driver.cuMemRelease(made);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    struct allocation opened = {.kind = ALLOCATION_HANDLE};
    struct shared shared;
    CUresult result;
    void *held;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle)
        return driver.cuMemImportFromShareableHandle(handle, shareable, type);
    held = share_hold(&shared, shareable, type);
    share_find(&shared, &opened);
    result = opened.bytes ? charge_device(opened.device, opened.bytes) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = import(handle, held, type, &opened);
        if (result != CUDA_SUCCESS)
            entry_release(&opened);
    }
    share_let_go(&shared);
    return result;
}

CUresult export_settle(struct physical *physical, uint64_t bytes)
{
    struct allocation *charge = &physical->charge;
    CUresult result = CUDA_SUCCESS;

    mutex_lock(&lock, LOCK_EXPORTS);
    if (charge->bytes < bytes) {
        result = charge_device(charge->device, bytes - charge->bytes);
        if (result == CUDA_SUCCESS)
            charge->bytes = bytes;
        shared_memory_resize(&shim.region, charge->link, charge->bytes);
    }
    mutex_unlock(&lock, LOCK_EXPORTS);
    return result;
}

/* The key of the memory's IPC handle, so that its importers find the same export, if it gets one
 * later; or another one, where it can have no such handle. */
static uint64_t key_of(const struct allocation *memory)
{
    CUipcMemHandle handle;

    return driver.cuIpcGetMemHandle(&handle, memory->address) == CUDA_SUCCESS
               ? share_ipc_key(&handle)
               : shared_memory_new_key(&shim.region);
}

/* Let others have the linear memory *found* by a descriptor; 0 if another thread frees it
 * meanwhile, perhaps without having seen the export. */
static int export_linear(const struct allocation *found, const void *shareable)
{
    struct allocation now;
    uint64_t key;

    if (!share_export(found, found->link ? 0 : key_of(found)) ||
        !allocations_find(ALLOCATION_LINEAR, found->address, &now) || !now.link)
        return 0;
    key = shared_memory_key_of(&shim.region, now.link);
    return shared_memory_carry(&shim.region, key, *(const int *) shareable) &&
           allocations_find(ALLOCATION_LINEAR, found->address, &now) && now.link &&
           shared_memory_same_key(shared_memory_key_of(&shim.region, now.link), key);
}

/* Let others have the memory in *bytes* from *address* on; 0 if they must not. */
static int export_range(CUdeviceptr address, size_t bytes, const void *shareable)
{
    CUdeviceptr base = address;
    struct allocation found;
    size_t step;

    driver.cuMemGetAddressRange_v2(&base, NULL, address);
    if (allocations_find(ALLOCATION_LINEAR, base, &found))
        return export_linear(&found, shareable);
    for (size_t at = 0; at < bytes; at += step) {
        struct physical *physical = physical_hold_mapped(address + at, &found);
        int done = physical &&
                   export_physical(physical, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

        if (!physical)
            return at == 0; /* memory that is not charged by its address */
        physical_drop(physical);
        if (!done)
            return 0;
        step = found.address + found.bytes - (address + at);
    }
    return 1;
}

CUresult cuMemGetHandleForAddressRange(void *shareable, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags)
{
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuMemGetHandleForAddressRange(shareable, address, bytes, type, flags);
    if (result == CUDA_SUCCESS && !export_range(address, bytes, shareable))
        result = share_take_back(shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return result;
}
