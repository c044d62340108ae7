/* SPDX-License-Identifier: Apache-2.0 */
/* export.c -- hooks that give physical memory to other processes, and take it; see export.h.
 *
 * What a descriptor means nobody else can tell from it, so memory that is exported has the key that
 * an importer will find: its device and size. A fabric handle is treated alike.
 */
#include "cuda/export.h"
#include "carrier.h"
#include "cuda/charge.h"
#include "cuda/share.h"
#include "driver.h"
#include "links.h"

#include <pthread.h>

/* Held while a record's link is decided, not over calls into the driver. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Lock held. */
static int keep_all_exports(void)
{
    static link_t kept;

    if (!kept)
        kept = links_import_unknown(&shim.region);
    return kept != 0;
}

int export_keep_all(void)
{
    int done;

    pthread_mutex_lock(&lock);
    done = keep_all_exports();
    pthread_mutex_unlock(&lock);
    return done;
}

/* Let others open *physical* by *descriptor*, or by what is none: -1; 0 if it must not be. */
static int export_physical(struct physical *physical, int descriptor)
{
    struct allocation *charge = &physical->charge;
    int done = 1;

    pthread_mutex_lock(&lock);
    if (charge->bytes) {
        int first = !charge->link;

        if (first)
            charge->link = share_offer(share_key(charge->device, charge->bytes), charge->device,
                                       charge->bytes, LINK_DESCRIPTOR);
        done = charge->link != 0;
        if (done)
            links_carry(&shim.region, charge->link, descriptor, first);
    } else if (physical->imported) { /* who imports it next cannot be told from who imports ours */
        done = keep_all_exports();
    }
    pthread_mutex_unlock(&lock);
    return done;
}

static int descriptor_of(const void *shareable, CUmemAllocationHandleType type)
{
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *(const int *) shareable : -1;
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
    if (result == CUDA_SUCCESS && !export_physical(physical, descriptor_of(shareable, type)))
        result = share_take_back(shareable, type);
    physical_drop(physical);
    return result;
}

/* Where imported memory is. A multicast object has no properties, and takes no memory. */
static CUresult find_place(CUmemGenericAllocationHandle handle, int *place)
{
    CUmemAllocationProp properties;
    CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, handle);

    *place = PLACE_ON_HOST;
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE)
        return CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        *place = physical_place(&properties.location);
    return *place == PLACE_NOWHERE ? CUDA_ERROR_NOT_SUPPORTED : result;
}

/* The driver imported memory, *link* being that of something not known yet. */
static CUresult enter(CUmemGenericAllocationHandle handle, uint16_t link)
{
    struct physical *physical = physical_hold(handle);
    CUresult result;
    int place;

    if (physical) { /* the driver counts one more reference of a handle that this process has */
        links_end_import(&shim.region, link);
        return refusal(physical_give_reference(physical));
    }
    result = find_place(handle, &place);
    if (result != CUDA_SUCCESS)
        return result;
    physical = physical_enter(handle, place >= 0 ? (unsigned) place : 0, 0);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->shared = 1;
    if (place < 0) {
        links_end_import(&shim.region, link);
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    physical->charge.link = link;
    physical->imported = IMPORTED_UNSIZED;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    CUmemGenericAllocationHandle made;
    CUresult result;
    link_t link;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle)
        return driver.cuMemImportFromShareableHandle(handle, shareable, type);
    link = links_import_unknown(&shim.region);
    if (!link)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver.cuMemImportFromShareableHandle(&made, shareable, type);
    if (result == CUDA_SUCCESS) {
        if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            carrier_learn(&shim.region, (int) (intptr_t) shareable);
        result = enter(made, link);
        if (result == CUDA_SUCCESS) {
            *handle = made;
            return result;
        }
        driver.cuMemRelease(made);
    }
    links_end_import(&shim.region, link);
    return result;
}

/* Charge this process for what it imported, of which it has mapped more than was known. Lock held.
 * What it lets others open in turn is written with its bytes, and cannot grow. */
static CUresult pay(struct allocation *charge, uint64_t bytes)
{
    CUresult result = CUDA_SUCCESS;

    if (!charge->link && charge->bytes < bytes) {
        result = charge_device(charge->device, bytes - charge->bytes);
        if (result == CUDA_SUCCESS)
            charge->bytes = bytes;
    }
    return result;
}

CUresult export_settle(struct physical *physical, uint64_t bytes)
{
    struct allocation *charge = &physical->charge;
    uint16_t unknown = 0;
    CUresult result;

    pthread_mutex_lock(&lock);
    if (physical->imported == IMPORTED_UNSIZED) {
        unknown = charge->link;
        charge->link = share_import(share_key(charge->device, bytes));
    }
    result = pay(charge, bytes);
    if (result == CUDA_SUCCESS) {
        physical->imported = IMPORTED_SIZED;
        links_end_import(&shim.region, unknown);
    } else if (unknown) {
        charge->link = unknown;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Let others have the linear memory at *base* by a descriptor. Of what they can have by a handle
 * already, that is one more export, which is charged by itself and stays as long as the process. */
static int export_linear(const struct allocation *allocation)
{
    uint64_t key = share_key(allocation->device, allocation->bytes);

    if (!allocation->link)
        return share_export(allocation, key, LINK_DESCRIPTOR);
    if (charge_device(allocation->device, allocation->bytes) != CUDA_SUCCESS)
        return 0;
    if (share_offer(key, allocation->device, allocation->bytes, LINK_DESCRIPTOR))
        return 1;
    ledger_refund(&shim.ledger, allocation->device, allocation->bytes);
    return 0;
}

/* Let others have what lies in *bytes* from *address* on; 0 if they must not. */
static int export_range(CUdeviceptr address, size_t bytes)
{
    CUdeviceptr base = address;
    struct allocation found;
    size_t step;

    driver.cuMemGetAddressRange_v2(&base, NULL, address);
    if (allocations_find(ALLOCATION_LINEAR, base, &found))
        return export_linear(&found);
    for (size_t at = 0; at < bytes; at += step) {
        struct physical *physical = physical_hold_mapped(address + at, &found);
        int done = physical && export_physical(physical, -1);

        if (!physical)
            return at == 0; /* not memory that is charged by its address */
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
    if (result == CUDA_SUCCESS && !export_range(address, bytes))
        result = share_take_back(shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return result;
}
