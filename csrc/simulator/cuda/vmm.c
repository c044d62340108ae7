/* SPDX-License-Identifier: Apache-2.0 */
/* vmm.c -- virtual memory management: reserved addresses, physical memory, and one on the other.
 *
 * Physical memory is an allocation of the heap that no program knows the address of. Memory is
 * charged when it is created and given back when handle and mappings are gone.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"
#include "queue.h"

#define GRANULARITY UINT64_C(0x200000)

enum { PHYSICAL_MAGIC = 0x70687973 };

struct physical {
    uint32_t magic;
    uint32_t device;
    unsigned int references; /* of handles */
    unsigned int mappings;
    CUdeviceptr backing;
    uint64_t size;
    uint64_t id;
    CUmemAllocationProp properties;
};

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
    int ordinal; /* whose access it is */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges;
static _Atomic size_t range_count;
static struct mapping *mappings; /* by base */
static size_t mapping_count;
static uint64_t last_id;

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
    pthread_rwlock_rdlock(&lock);
    mapping = mapping_at(address);
    if (mapping && mapping->access != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        bytes = mapping->bytes + (address - mapping->base);
        *length = mapping->base + mapping->size - address;
    }
    pthread_rwlock_unlock(&lock);
    return bytes;
}

bool vmm_find(uint64_t address, struct memory_info *info)
{
    const struct mapping *mapping;
    const struct range *range;

    if (!atomic_load_explicit(&range_count, memory_order_relaxed))
        return false;
    pthread_rwlock_rdlock(&lock);
    range = range_at(address, 1);
    mapping = mapping_at(address);
    if (mapping)
        *info = (struct memory_info) {
            .base = mapping->base,
            .size = mapping->size,
            .kind = MEMORY_VIRTUAL,
            .device = mapping->physical->device,
            .ordinal = mapping->physical->properties.location.id,
            .id = (UINT64_C(1) << 61) + mapping->physical->id,
        };
    else if (range)
        *info = (struct memory_info) {
            .base = range->base, .size = range->size, .kind = MEMORY_VIRTUAL, .ordinal = -1};
    pthread_rwlock_unlock(&lock);
    return range;
}

static struct physical *find_physical(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *) (uintptr_t) handle;

    if (!physical || handle % sizeof(void *) || physical->magic != PHYSICAL_MAGIC)
        return NULL;
    return physical;
}

/* Lock held. */
static void let_go(struct physical *physical)
{
    if (physical->references || physical->mappings)
        return;
    memory_free(physical->backing, MEMORY_PHYSICAL);
    physical->magic = 0;
    free(physical);
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
    REQUIRE(ptr && size && size % GRANULARITY == 0 && !flags);
    REQUIRE(!(alignment & (alignment - 1)));
    if (alignment < GRANULARITY)
        alignment = GRANULARITY;
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
    pthread_rwlock_wrlock(&lock);
    grown = realloc(ranges, (range_count + 1) * sizeof(*ranges));
    if (grown) {
        ranges = grown;
        ranges[range_count] = (struct range) {start, size};
        range_count++;
    }
    pthread_rwlock_unlock(&lock);
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
    pthread_rwlock_wrlock(&lock);
    range = range_at(ptr, size);
    above = first_above(ptr);
    if (range && range->base == ptr && range->size == size &&
        (above == mapping_count || mappings[above].base >= ptr + size)) {
        munmap((void *) ptr, size);
        *range = ranges[--range_count];
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&lock);
    return result;
}

/* --- physical memory ----------------------------------------------------------------------------
 */

static CUresult check_properties(const CUmemAllocationProp *properties, int *device)
{
    REQUIRE(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
            properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    *device = process_device(properties->location.id);
    return *device < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct physical *physical;
    CUresult result;
    int device;

    ENTER();
    REQUIRE(handle && size && size % GRANULARITY == 0 && !flags);
    result = check_properties(prop, &device);
    if (result != CUDA_SUCCESS)
        return result;
    physical = calloc(1, sizeof(*physical));
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = memory_allocate_on((uint32_t) device, MEMORY_PHYSICAL, size, &physical->backing);
    if (result != CUDA_SUCCESS) {
        free(physical);
        return result;
    }
    physical->magic = PHYSICAL_MAGIC;
    physical->device = (uint32_t) device;
    physical->references = 1;
    physical->size = size;
    physical->properties = *prop;
    pthread_rwlock_wrlock(&lock);
    physical->id = ++last_id;
    pthread_rwlock_unlock(&lock);
    *handle = (CUmemGenericAllocationHandle) (uintptr_t) physical;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *physical;

    ENTER();
    pthread_rwlock_wrlock(&lock);
    physical = find_physical(handle);
    if (physical && physical->references) {
        physical->references--;
        let_go(physical);
    } else {
        physical = NULL;
    }
    pthread_rwlock_unlock(&lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    const struct mapping *mapping;

    ENTER();
    REQUIRE(handle);
    pthread_rwlock_wrlock(&lock);
    mapping = mapping_at((uint64_t) addr);
    if (mapping) {
        mapping->physical->references++;
        *handle = (CUmemGenericAllocationHandle) (uintptr_t) mapping->physical;
    }
    pthread_rwlock_unlock(&lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    const struct physical *physical;

    ENTER();
    physical = find_physical(handle);
    REQUIRE(prop && physical);
    *prop = physical->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result;
    int device;

    ENTER();
    REQUIRE(granularity && (option == CU_MEM_ALLOC_GRANULARITY_MINIMUM ||
                            option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    result = check_properties(prop, &device);
    if (result == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return result;
}

/* --- one on the other ---------------------------------------------------------------------------
 */

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
        .bytes = memory_translate(physical->backing + offset, size),
        .access = CU_MEM_ACCESS_FLAGS_PROT_NONE,
        .ordinal = physical->properties.location.id,
    };
    mapping_count++;
    physical->mappings++;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct physical *physical;

    ENTER();
    REQUIRE(ptr && size && ptr % GRANULARITY == 0 && size % GRANULARITY == 0 &&
            offset % GRANULARITY == 0 && !flags);
    pthread_rwlock_wrlock(&lock);
    physical = find_physical(handle);
    if (physical && offset <= physical->size && size <= physical->size - offset)
        result = add_mapping(ptr, size, offset, physical);
    pthread_rwlock_unlock(&lock);
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
    pthread_rwlock_wrlock(&lock);
    found = whole_mappings(ptr, size, &first, &count);
    for (size_t i = first; found && i < first + count; i++) {
        mappings[i].physical->mappings--;
        let_go(mappings[i].physical);
    }
    if (found) {
        memmove(&mappings[first], &mappings[first + count],
                (mapping_count - first - count) * sizeof(*mappings));
        mapping_count -= count;
    }
    pthread_rwlock_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    size_t first, mapped;
    bool found;

    ENTER();
    REQUIRE(ptr && size && desc && count);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        if (process_device(desc[i].location.id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_rwlock_wrlock(&lock);
    found = whole_mappings(ptr, size, &first, &mapped);
    for (size_t i = first; found && i < first + mapped; i++)
        for (size_t j = 0; j < count; j++)
            if (desc[j].location.id == mappings[i].ordinal)
                mappings[i].access = desc[j].flags;
    pthread_rwlock_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    const struct mapping *mapping;

    ENTER();
    REQUIRE(flags && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    pthread_rwlock_rdlock(&lock);
    mapping = mapping_at(ptr);
    if (mapping)
        *flags = location->id == mapping->ordinal ? mapping->access : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pthread_rwlock_unlock(&lock);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
