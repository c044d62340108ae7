/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c -- multicast objects: a team of devices, and their memory bound to it.
 *
 * Bound memory is held until it is unbound or the object is gone. The object has bytes of its own,
 * which are not visible through the memory bound to it and are not charged.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda/attribute.h"
#include "cuda/physical.h"

struct binding {
    struct binding *next;
    uint32_t device;
    uint64_t offset;
    uint64_t size;
    struct physical *physical;
};

struct multicast {
    unsigned int device_count; /* size of the complete team */
    uint32_t devices;          /* bit per ordinal that is in it */
    struct binding *bindings;
};

static void unbind(struct binding *binding)
{
    binding->physical->pins--;
    physical_let_go(binding->physical);
    free(binding);
}

void multicast_free(struct multicast *multicast)
{
    while (multicast->bindings) {
        struct binding *binding = multicast->bindings;

        multicast->bindings = binding->next;
        unbind(binding);
    }
    free(multicast);
}

static bool has_multicast(int ordinal)
{
    const struct device_config *config = process_device_config(ordinal);

    return config && attribute_value(config, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
}

static bool any_has_multicast(void)
{
    for (int ordinal = 0; ordinal < process.device_count; ordinal++)
        if (has_multicast(ordinal))
            return true;
    return false;
}

static struct physical *find(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = physical_find(handle);

    return physical && physical->multicast ? physical : NULL;
}

static CUresult check_properties(const CUmulticastObjectProp *prop)
{
    REQUIRE(prop && prop->numDevices && prop->size && !prop->flags);
    if (prop->handleTypes)
        return CUDA_ERROR_NOT_SUPPORTED;
    return any_has_multicast() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option)
{
    CUresult result;

    ENTER();
    REQUIRE(granularity && (option == CU_MULTICAST_GRANULARITY_MINIMUM ||
                            option == CU_MULTICAST_GRANULARITY_RECOMMENDED));
    result = check_properties(prop);
    if (result == CUDA_SUCCESS)
        *granularity = PHYSICAL_GRANULARITY;
    return result;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle,
                           const CUmulticastObjectProp *prop)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    struct physical *physical;
    CUresult result;
    void *bytes;

    ENTER();
    REQUIRE(mcHandle);
    result = check_properties(prop);
    if (result != CUDA_SUCCESS)
        return result;
    REQUIRE(prop->size % PHYSICAL_GRANULARITY == 0);
    physical = physical_make(PHYSICAL_MULTICAST, prop->size, &properties);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->multicast = calloc(1, sizeof(*physical->multicast));
    bytes = mmap(NULL, prop->size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes != MAP_FAILED)
        physical->bytes = bytes;
    if (!physical->multicast || bytes == MAP_FAILED) {
        physical_release(physical_handle(physical));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->multicast->device_count = prop->numDevices;
    *mcHandle = physical_handle(physical);
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct multicast *multicast;
    struct physical *physical;

    ENTER();
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!has_multicast(dev))
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_rwlock_wrlock(&vmm_lock);
    physical = find(mcHandle);
    multicast = physical ? physical->multicast : NULL;
    if (multicast && !(multicast->devices & 1U << dev) &&
        (unsigned int) __builtin_popcount(multicast->devices) < multicast->device_count) {
        multicast->devices |= 1U << dev;
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

static bool is_free(const struct multicast *multicast, uint32_t device, uint64_t offset,
                    uint64_t size)
{
    for (const struct binding *at = multicast->bindings; at; at = at->next)
        if (at->device == device && offset < at->offset + at->size && at->offset < offset + size)
            return false;
    return true;
}

/* Lock held. */
static CUresult bind(const struct physical *object, uint64_t at, struct physical *memory,
                     uint64_t offset, uint64_t size)
{
    struct multicast *multicast = object->multicast;
    struct binding *binding;

    REQUIRE(memory && memory->kind == PHYSICAL_DEVICE && size &&
            (at | offset | size) % PHYSICAL_GRANULARITY == 0);
    REQUIRE(at <= object->size && size <= object->size - at);
    REQUIRE(offset <= memory->size && size <= memory->size - offset);
    REQUIRE(multicast->devices & 1U << memory->properties.location.id);
    if ((unsigned int) __builtin_popcount(multicast->devices) != multicast->device_count)
        return CUDA_ERROR_ILLEGAL_STATE;
    REQUIRE(is_free(multicast, memory->device, at, size));
    binding = malloc(sizeof(*binding));
    if (!binding)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct binding) {multicast->bindings, memory->device, at, size, memory};
    multicast->bindings = binding;
    memory->pins++;
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags)
{
    const struct physical *object;
    CUresult result;

    ENTER();
    REQUIRE(!flags);
    pthread_rwlock_wrlock(&vmm_lock);
    object = find(mcHandle);
    result = object ? bind(object, mcOffset, physical_find(memHandle), memOffset, size)
                    : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset,
                               size_t size, unsigned long long flags)
{
    const struct physical *memory;

    ENTER();
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    memory = physical_find(memHandle);
    REQUIRE(memory && memory->properties.location.id == dev);
    return cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags)
{
    const struct physical *object;
    struct physical *memory;
    uint64_t offset = 0;
    CUresult result;

    ENTER();
    REQUIRE(!flags);
    pthread_rwlock_wrlock(&vmm_lock);
    object = find(mcHandle);
    memory = vmm_physical(memptr, size, &offset);
    result = object ? bind(object, mcOffset, memory, offset, size) : CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev,
                                size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags)
{
    ENTER();
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct physical *object;
    int device;

    ENTER();
    device = process_device(dev);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_rwlock_wrlock(&vmm_lock);
    object = find(mcHandle);
    for (struct binding **link = object ? &object->multicast->bindings : NULL; link && *link;) {
        struct binding *binding = *link;

        if (binding->device != (uint32_t) device || binding->offset < mcOffset ||
            binding->offset + binding->size > mcOffset + size) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        unbind(binding);
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}
