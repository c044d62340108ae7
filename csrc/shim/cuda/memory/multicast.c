/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c -- hooks of multicast objects, which take no memory themselves and keep bound memory.
 *
 * An object has a handle and is mapped like memory, so it has a record like memory, with no charge.
 * A binding holds the record of the memory until it is undone, or the object is destroyed. If other
 * processes may have the object, too, this process cannot tell when it is destroyed: then memory
 * left bound to it stays charged.
 *
 * Stream-ordered memory can be bound by its address. Its pool is charged for it, and keeps holding
 * it.
 */
#include "shim/cuda/memory/multicast.h"
#include "shim/cuda/memory/physical.h"
#include "shim/driver.h"
#include "shim/shim.h"
#include "core/spin.h"

#include <stdlib.h>

/* Lock of the bindings of all objects; never held during a driver call, which may block until all
 * devices have been added to an object. */
static int lock;

static void attach(struct physical *object, struct binding *bindings)
{
    struct binding **end = &bindings;

    spin_lock(&lock, LOCK_MULTICAST);
    while (*end)
        end = &(*end)->next;
    *end = object->bound;
    object->bound = bindings;
    spin_unlock(&lock, LOCK_MULTICAST);
}

/* Take out the bindings of *device* within a part of the object. */
static struct binding *detach(struct physical *object, int device, size_t offset, size_t bytes)
{
    struct binding *detached = NULL;
    struct binding **link;

    spin_lock(&lock, LOCK_MULTICAST);
    for (link = &object->bound; *link;) {
        struct binding *binding = *link;

        if (binding->memory->charge.device == device && binding->offset >= offset &&
            binding->bytes <= bytes && binding->offset - offset <= bytes - binding->bytes) {
            *link = binding->next;
            binding->next = detached;
            detached = binding;
        } else {
            link = &binding->next;
        }
    }
    spin_unlock(&lock, LOCK_MULTICAST);
    return detached;
}

void multicast_after_fork(void)
{
    lock = 0;
}

/* Prepare to bind *memory*, which is held; NULL, after dropping it, if allocation fails. */
static struct binding *prepare(struct physical *memory, size_t offset, size_t bytes)
{
    struct binding *binding = malloc(sizeof(*binding));

    if (binding)
        *binding = (struct binding) {.memory = memory, .offset = offset, .bytes = bytes};
    else
        physical_drop(memory);
    return binding;
}

/* Prepare to bind the memory mapped in *bytes* from *address* on; 0 if allocation fails. */
static int prepare_mapped(struct binding **bindings, size_t offset, CUdeviceptr address,
                          size_t bytes)
{
    struct allocation mapping;
    size_t part;

    for (size_t at = 0; at < bytes; at += part) {
        struct physical *memory = physical_hold_mapped(address + at, &mapping);
        struct binding *binding;

        if (!memory)
            break;
        part = mapping.address + mapping.bytes - (address + at);
        part = part < bytes - at ? part : bytes - at;
        binding = prepare(memory, offset + at, part);
        if (!binding)
            return 0;
        binding->next = *bindings;
        *bindings = binding;
    }
    return 1;
}

/* Finish after the driver call; *bound* says whether the bindings exist now. Memory bound to an
 * object without a record stays held for ever. */
static void settle(struct physical *object, struct binding *bindings, int bound)
{
    if (!bound)
        physical_drop_bindings(bindings);
    else if (object)
        attach(object, bindings);
    if (object)
        physical_drop(object);
}

static CUresult settle_bound(struct physical *object, struct binding *bindings, CUresult result)
{
    settle(object, bindings, result == CUDA_SUCCESS);
    return result;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                           const CUmulticastObjectProp *properties)
{
    CUmemGenericAllocationHandle made;
    struct physical *object;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle || !properties)
        return driver.cuMulticastCreate(handle, properties);
    result = driver.cuMulticastCreate(&made, properties);
    if (result != CUDA_SUCCESS)
        return result;
    object = physical_enter(made, 0, 0);
    if (!object) {
        driver.cuMemRelease(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object->shared = properties->handleTypes != 0;
    physical_keep_in_place(object);
    *handle = made;
    return CUDA_SUCCESS;
}

/* The body of both forms: hold the memory and the object, call the driver, settle. */
#define BIND_MEMORY(symbol, ...)                                          \
    do {                                                                  \
        struct physical *memory;                                          \
        struct binding *binding = NULL;                                   \
        struct physical *object;                                          \
                                                                          \
        if (!shim.open)                                                   \
            return CUDA_ERROR_NOT_INITIALIZED;                            \
        memory = physical_hold(memory_handle);                            \
        if (memory && !(binding = prepare(memory, offset, bytes)))        \
            return CUDA_ERROR_OUT_OF_MEMORY;                              \
        memory_handle = physical_handle(memory, memory_handle);           \
        object = physical_hold(handle);                                   \
        return settle_bound(object, binding, driver.symbol(__VA_ARGS__)); \
    } while (0)

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                            CUmemGenericAllocationHandle memory_handle, size_t memory_offset,
                            size_t bytes, unsigned long long flags)
{
    BIND_MEMORY(cuMulticastBindMem, handle, offset, memory_handle, memory_offset, bytes, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
                               CUmemGenericAllocationHandle memory_handle, size_t memory_offset,
                               size_t bytes, unsigned long long flags)
{
    BIND_MEMORY(cuMulticastBindMem_v2, handle, ordinal, offset, memory_handle, memory_offset, bytes,
                flags);
}

#define BIND_ADDRESS(symbol, ...)                                          \
    do {                                                                   \
        struct binding *bindings = NULL;                                   \
        struct physical *object;                                           \
                                                                           \
        if (!shim.open)                                                    \
            return CUDA_ERROR_NOT_INITIALIZED;                             \
        if (!prepare_mapped(&bindings, offset, address, bytes)) {          \
            physical_drop_bindings(bindings);                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                               \
        }                                                                  \
        object = physical_hold(handle);                                    \
        return settle_bound(object, bindings, driver.symbol(__VA_ARGS__)); \
    } while (0)

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags)
{
    BIND_ADDRESS(cuMulticastBindAddr, handle, offset, address, bytes, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice ordinal,
                                size_t offset, CUdeviceptr address, size_t bytes,
                                unsigned long long flags)
{
    BIND_ADDRESS(cuMulticastBindAddr_v2, handle, ordinal, offset, address, bytes, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
                           size_t bytes)
{
    struct binding *bindings = NULL;
    struct physical *object;
    CUresult result;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    object = physical_hold(handle);
    if (object)
        bindings = detach(object, shim_device(ordinal), offset, bytes);
    result = driver.cuMulticastUnbind(handle, ordinal, offset, bytes);
    settle(object, bindings, result != CUDA_SUCCESS);
    return result;
}
