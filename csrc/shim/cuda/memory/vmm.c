/* SPDX-License-Identifier: Apache-2.0 */
/* vmm.c -- hooks of virtual memory management: physical memory and its mappings.
 *
 * Memory is charged when it is created, to the device in its properties; no context need be
 * current. Address ranges take no memory. Host memory is not charged, but registered by its handle
 * and mappings like all other memory.
 */
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/export.h"
#include "shim/cuda/memory/physical.h"
#include "shim/driver.h"

#include <stdlib.h>

static CUresult ask_unit(size_t *unit, const CUmemAllocationProp *properties)
{
    return driver.cuMemGetAllocationGranularity(unit, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

/* Create memory in the driver, and register it with *bytes* charged to *device*. */
static CUresult create_charged(CUmemGenericAllocationHandle *handle, size_t size,
                               const CUmemAllocationProp *properties, unsigned long long flags,
                               unsigned device, uint64_t bytes)
{
    CUmemGenericAllocationHandle made;
    CUresult result = driver.cuMemCreate(&made, size, properties, flags);
    struct physical *physical;

    if (unlikely(result != CUDA_SUCCESS))
        return result;
    physical = physical_enter(made, device, bytes);
    if (unlikely(!physical)) {
        driver.cuMemRelease(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (unlikely(properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC))
        physical_keep_in_place(physical);
    *handle = made;
    return CUDA_SUCCESS;
}

static CUresult create_on_device(CUmemGenericAllocationHandle *handle, size_t size,
                                 const CUmemAllocationProp *properties, unsigned long long flags,
                                 unsigned device)
{
    uint64_t bytes = charge_size(size);
    CUresult result = charge_device(device, bytes);
    size_t unit = 0;

    if (likely(result == CUDA_SUCCESS)) {
        result = create_charged(handle, size, properties, flags, device, bytes);
        if (unlikely(result != CUDA_SUCCESS))
            ledger_refund(&shim.ledger, device, bytes);
        return result;
    }
    /* A request that is invalid even on an empty device gets the driver's own error. */
    result = ask_unit(&unit, properties);
    if (result != CUDA_SUCCESS)
        return result;
    return unit && size % unit ? driver.cuMemCreate(handle, size, properties, flags)
                               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A location that the driver does not know gets the driver's error; at one that only we do not
 * know, nothing may be allocated. */
static CUresult create_nowhere(CUmemGenericAllocationHandle *handle, size_t size,
                               const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = CUDA_SUCCESS;
    size_t unit;

    if (ask_unit(&unit, properties) != CUDA_SUCCESS) {
        result = driver.cuMemCreate(handle, size, properties, flags);
        if (result == CUDA_SUCCESS)
            driver.cuMemRelease(*handle);
    }
    return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUmemAllocationProp copy; /* so that the driver gets exactly what was charged */
    int place;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (unlikely(!handle || !size || !properties))
        return driver.cuMemCreate(handle, size, properties, flags);
    copy = *properties;
    place = physical_place(&copy.location);
    if (likely(place >= 0))
        return create_on_device(handle, size, &copy, flags, (unsigned) place);
    return place == PLACE_ON_HOST ? create_charged(handle, size, &copy, flags, 0, 0)
                                  : create_nowhere(handle, size, &copy, flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *physical;
    CUresult result;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    physical = physical_take_reference(handle);
    result = driver.cuMemRelease(handle);
    if (unlikely(!physical))
        return result;
    if (likely(result == CUDA_SUCCESS))
        physical_drop(physical);
    else
        physical_give_reference(physical);
    return result;
}

/* Count a reference that the driver has given out, of memory that is or was mapped at *address*.
 * That memory exists, and *handle* is its alone: so it is the memory that has references of this
 * handle; or, if none has, the memory that is mapped there now and was mapped with this handle.
 * Else it has been unmapped meanwhile, or no hook saw its creation, and it would be kept without
 * being charged: then return the error for an address where nothing is mapped. */
static CUresult settle_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
    struct allocation mapping;
    struct physical *physical;

    if (physical_add_reference(handle))
        return CUDA_SUCCESS;
    physical = physical_hold_mapped(address, &mapping);
    if (physical && physical->charge.address == handle && physical_give_reference(physical) == 0)
        return CUDA_SUCCESS;
    driver.cuMemRelease(handle);
    if (physical)
        physical_drop(physical);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUmemGenericAllocationHandle retained;
    struct allocation mapping;
    struct physical *physical;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle)
        return driver.cuMemRetainAllocationHandle(handle, address);
    /* Hold it, so that a thread that unmaps it meanwhile does not end its last use. */
    physical = physical_hold_mapped((CUdeviceptr) address, &mapping);
    result = driver.cuMemRetainAllocationHandle(&retained, address);
    if (result == CUDA_SUCCESS)
        result = settle_retained(retained, (CUdeviceptr) address);
    if (result == CUDA_SUCCESS)
        *handle = retained;
    if (physical)
        physical_drop(physical);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct physical *physical;
    CUresult result;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    physical = bytes ? physical_hold(handle) : NULL;
    result = driver.cuMemMap(address, bytes, offset, physical_handle(physical, handle), flags);
    if (unlikely(!physical))
        return result;
    if (likely(result == CUDA_SUCCESS)) {
        if (unlikely(physical->foreign))
            result = export_settle(physical, bytes);
        if (likely(result == CUDA_SUCCESS && physical_map(physical, address, bytes) == 0))
            return result;
        driver.cuMemUnmap(address, bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical_drop(physical);
    return result;
}

/* Unmap in the driver; the entries of *count* mappings were taken out of the table. */
static CUresult unmap(CUdeviceptr address, size_t bytes, const struct allocation *taken,
                      size_t count)
{
    CUresult result = driver.cuMemUnmap(address, bytes);

    for (size_t i = 0; i < count; i++) {
        if (likely(result == CUDA_SUCCESS))
            physical_drop(physical_of(&taken[i]));
        else /* cannot fail: taking it out has left room */
            physical_map(physical_of(&taken[i]), taken[i].address, taken[i].bytes);
    }
    return result;
}

/* The number of adjacent mappings in *bytes* from *address* on. */
static size_t count_mappings(CUdeviceptr address, size_t bytes)
{
    struct allocation mapping;
    size_t count = 0;

    for (size_t at = 0; at < bytes; at += mapping.bytes, count++)
        if (!allocations_find(ALLOCATION_MAPPING, address + at, &mapping))
            break;
    return count;
}

/* Unmap several mappings; the first one is taken out of the table already. */
static CUresult unmap_several(CUdeviceptr address, size_t bytes, const struct allocation *first)
{
    size_t limit = 1 + count_mappings(address + first->bytes, bytes - first->bytes);
    struct allocation *taken = malloc(limit * sizeof(*taken));
    size_t count = 1;
    CUresult result;

    if (!taken) {
        physical_map(physical_of(first), first->address, first->bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    taken[0] = *first;
    for (size_t at = first->bytes; count < limit && at < bytes; at += taken[count++].bytes)
        if (!allocations_take(ALLOCATION_MAPPING, address + at, &taken[count]))
            break;
    result = unmap(address, bytes, taken, count);
    free(taken);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct allocation mapping;

    if (unlikely(!shim.open))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (unlikely(!allocations_take(ALLOCATION_MAPPING, address, &mapping)))
        return driver.cuMemUnmap(address, bytes);
    if (likely(mapping.bytes >= bytes))
        return unmap(address, bytes, &mapping, 1);
    return unmap_several(address, bytes, &mapping);
}
