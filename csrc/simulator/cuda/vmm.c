/* SPDX-License-Identifier: Apache-2.0 */
/* vmm.c -- virtual memory management: reserved addresses, and physical memory mapped at them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/physical.h"
#include "queue.h"

struct range {
    uint64_t base;
    uint64_t size;
};

struct mapping {
    uint64_t base;
    uint64_t size;
    uint64_t offset; /* into the physical memory */
    struct physical *physical;
    char *bytes;
    CUmemAccess_flags access;
    int ordinal; /* of the device that has the access */
};

static struct range *ranges;
static _Atomic size_t range_count;
static struct mapping *mappings; /* by base */
static size_t mapping_count;

/* The first mapping that ends above address; mapping_count if none. Lock held. */
static size_t first_above(uint64_t address)
{
    size_t low = 0;
    size_t high = mapping_count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].base + mappings[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct mapping *mapping_at(uint64_t address)
{
    size_t place = first_above(address);

    return place < mapping_count && mappings[place].base <= address ? &mappings[place] : NULL;
}

static struct range *range_at(uint64_t address, uint64_t size)
{
    for (size_t i = 0; i < range_count; i++)
        if (address >= ranges[i].base && address - ranges[i].base < ranges[i].size &&
            size <= ranges[i].size - (address - ranges[i].base))
            return &ranges[i];
    return NULL;
}

void *vmm_chunk(uint64_t address, uint64_t *length)
{
    const struct mapping *mapping;
    void *bytes = NULL;

    if (!atomic_load_explicit(&range_count, memory_order_relaxed))
        return NULL;
    pthread_rwlock_rdlock(&vmm_lock);
    mapping = mapping_at(address);
    if (mapping && mapping->access != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        bytes = mapping->bytes + (address - mapping->base);
        *length = mapping->base + mapping->size - address;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return bytes;
}

bool vmm_find(uint64_t address, struct memory_info *info)
{
    const struct mapping *mapping;
    const struct range *range;

    if (!atomic_load_explicit(&range_count, memory_order_relaxed))
        return false;
    pthread_rwlock_rdlock(&vmm_lock);
    range = range_at(address, 1);
    mapping = mapping_at(address);
    if (mapping)
        *info = (struct memory_info) {
            .base = mapping->base,
            .size = mapping->size,
            .kind = MEMORY_VIRTUAL,
            .device = mapping->physical->device,
            .ordinal = mapping->ordinal,
            .id = (UINT64_C(1) << 61) + mapping->physical->id,
        };
    else if (range)
        *info = (struct memory_info) {
            .base = range->base, .size = range->size, .kind = MEMORY_VIRTUAL, .ordinal = -1};
    pthread_rwlock_unlock(&vmm_lock);
    return range;
}

struct physical *vmm_physical(uint64_t address, uint64_t size, uint64_t *offset)
{
    const struct mapping *mapping = mapping_at(address);

    if (!mapping || size > mapping->size - (address - mapping->base))
        return NULL;
    *offset = mapping->offset + (address - mapping->base);
    return mapping->physical;
}

/* --- addresses ----------------------------------------------------------------------------------
 */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    struct range *grown;
    uint64_t start, end;
    void *place;

    ENTER();
    REQUIRE(ptr && size && size % PHYSICAL_GRANULARITY == 0 && !flags);
    REQUIRE(!(alignment & (alignment - 1)));
    if (alignment < PHYSICAL_GRANULARITY)
        alignment = PHYSICAL_GRANULARITY;
    place = mmap((void *) addr, size + alignment, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    start = ((uint64_t) place + alignment - 1) & ~((uint64_t) alignment - 1);
    end = (uint64_t) place + size + alignment;
    if (start > (uint64_t) place)
        munmap(place, start - (uint64_t) place);
    if (end > start + size)
        munmap((void *) (start + size), end - start - size);
    pthread_rwlock_wrlock(&vmm_lock);
    grown = realloc(ranges, (range_count + 1) * sizeof(*ranges));
    if (grown) {
        ranges = grown;
        ranges[range_count] = (struct range) {start, size};
        range_count++;
    }
    pthread_rwlock_unlock(&vmm_lock);
    if (!grown) {
        munmap((void *) start, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = start;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct range *range;
    size_t above;

    ENTER();
    pthread_rwlock_wrlock(&vmm_lock);
    range = range_at(ptr, size);
    above = first_above(ptr);
    if (range && range->base == ptr && range->size == size &&
        (above == mapping_count || mappings[above].base >= ptr + size)) {
        munmap((void *) ptr, size);
        *range = ranges[--range_count];
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    const struct mapping *mapping;

    ENTER();
    REQUIRE(handle);
    pthread_rwlock_wrlock(&vmm_lock);
    mapping = mapping_at((uint64_t) addr);
    if (mapping) {
        mapping->physical->references++;
        *handle = (CUmemGenericAllocationHandle) (uintptr_t) mapping->physical;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- mapping ------------------------------------------------------------------------------------
 */

/* The ordinal whose access counts; -1: any device's, since the memory is on none. */
static int physical_ordinal(const struct physical *physical)
{
    return physical->kind == PHYSICAL_DEVICE ? physical->properties.location.id : -1;
}

/* Lock held. */
static CUresult add_mapping(uint64_t base, uint64_t size, uint64_t offset,
                            struct physical *physical)
{
    size_t place = first_above(base);
    struct mapping *grown;

    if (!range_at(base, size) || (place < mapping_count && mappings[place].base < base + size))
        return CUDA_ERROR_INVALID_VALUE;
    grown = realloc(mappings, (mapping_count + 1) * sizeof(*mappings));
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mappings = grown;
    memmove(&mappings[place + 1], &mappings[place], (mapping_count - place) * sizeof(*mappings));
    mappings[place] = (struct mapping) {
        .base = base,
        .size = size,
        .offset = offset,
        .physical = physical,
        .bytes = physical->bytes + offset,
        .access = CU_MEM_ACCESS_FLAGS_PROT_NONE,
        .ordinal = physical_ordinal(physical),
    };
    mapping_count++;
    physical->pins++;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct physical *physical;

    ENTER();
    REQUIRE(ptr && size && ptr % PHYSICAL_GRANULARITY == 0 && size % PHYSICAL_GRANULARITY == 0 &&
            offset % PHYSICAL_GRANULARITY == 0 && !flags);
    pthread_rwlock_wrlock(&vmm_lock);
    physical = physical_find(handle);
    if (physical && offset <= physical->size && size <= physical->size - offset)
        result = add_mapping(ptr, size, offset, physical);
    pthread_rwlock_unlock(&vmm_lock);
    return result;
}

/* The mappings that make up exactly [base, base + size): the first of them, and how many. */
static bool whole_mappings(uint64_t base, uint64_t size, size_t *first, size_t *count)
{
    uint64_t at = base;

    *first = first_above(base);
    *count = 0;
    while (at < base + size) {
        size_t place = *first + *count;
        if (place == mapping_count || mappings[place].base != at)
            return false;
        at += mappings[place].size;
        ++*count;
    }
    return at == base + size;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    size_t first, count;
    struct memory_info info;
    bool found;

    ENTER();
    REQUIRE(ptr && size);
    if (vmm_find(ptr, &info) && info.ordinal >= 0)
        queue_drain(info.device);
    pthread_rwlock_wrlock(&vmm_lock);
    found = whole_mappings(ptr, size, &first, &count);
    for (size_t i = first; found && i < first + count; i++) {
        mappings[i].physical->pins--;
        physical_let_go(mappings[i].physical);
    }
    if (found) {
        memmove(&mappings[first], &mappings[first + count],
                (mapping_count - first - count) * sizeof(*mappings));
        mapping_count -= count;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    size_t first, mapped;
    bool found;

    ENTER();
    REQUIRE(ptr && size && desc && count);
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST)
            continue;
        REQUIRE(desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        if (process_device(desc[i].location.id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_rwlock_wrlock(&vmm_lock);
    found = whole_mappings(ptr, size, &first, &mapped);
    for (size_t i = first; found && i < first + mapped; i++)
        for (size_t j = 0; j < count; j++)
            if (mappings[i].ordinal < 0 || desc[j].location.id == mappings[i].ordinal)
                mappings[i].access = desc[j].flags;
    pthread_rwlock_unlock(&vmm_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    const struct mapping *mapping;

    ENTER();
    REQUIRE(flags && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    pthread_rwlock_rdlock(&vmm_lock);
    mapping = mapping_at(ptr);
    if (mapping)
        *flags = mapping->ordinal < 0 || location->id == mapping->ordinal
                     ? mapping->access
                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pthread_rwlock_unlock(&vmm_lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
