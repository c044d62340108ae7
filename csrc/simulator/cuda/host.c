/* SPDX-License-Identifier: Apache-2.0 */
/* host.c -- pinned and registered host memory: an ordered list of ranges. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"
#include "queue.h"

#define ALLOC_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS                                                                          \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | \
     CU_MEMHOSTREGISTER_READ_ONLY)

struct range {
    uint64_t base;
    uint64_t size;
    uint64_t context_id;
    uint64_t id;
    int ordinal;
    uint32_t device;
    unsigned int flags;
    bool is_ours; /* allocated here, not registered */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges; /* by base */
static size_t count, capacity;
static uint64_t last_id;

/* The number of ranges that begin at or below address. Lock held. */
static size_t upper(uint64_t address)
{
    size_t low = 0;
    size_t high = count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Lock held. */
static struct range *find(uint64_t address)
{
    size_t place = upper(address);

    if (!place || address - ranges[place - 1].base >= ranges[place - 1].size)
        return NULL;
    return &ranges[place - 1];
}

bool host_find(uint64_t address, struct memory_info *info)
{
    const struct range *range;

    pthread_rwlock_rdlock(&lock);
    range = find(address);
    if (range)
        *info = (struct memory_info) {
            .base = range->base,
            .size = range->size,
            .kind = MEMORY_HOST,
            .device = range->device,
            .ordinal = range->ordinal,
            .context_id = range->context_id,
            .id = range->id,
            .flags = range->flags,
        };
    pthread_rwlock_unlock(&lock);
    return range;
}

static CUresult add(struct work_context *work, void *base, size_t size, unsigned int flags,
                    bool is_ours)
{
    CUresult result = CUDA_SUCCESS;
    size_t place;

    pthread_rwlock_wrlock(&lock);
    place = upper((uint64_t) base);
    if ((place && ranges[place - 1].base + ranges[place - 1].size > (uint64_t) base) ||
        (place < count && ranges[place].base < (uint64_t) base + size))
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (result == CUDA_SUCCESS && count == capacity) {
        size_t more = capacity ? 2 * capacity : 64;
        struct range *grown = realloc(ranges, more * sizeof(*grown));
        if (grown) {
            ranges = grown;
            capacity = more;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        memmove(&ranges[place + 1], &ranges[place], (count - place) * sizeof(*ranges));
        ranges[place] = (struct range) {
            .base = (uint64_t) base,
            .size = size,
            .context_id = work->id,
            .id = (UINT64_C(1) << 62) + ++last_id,
            .ordinal = work->ordinal,
            .device = work->device,
            .flags = flags,
            .is_ours = is_ours,
        };
        count++;
    }
    pthread_rwlock_unlock(&lock);
    return result;
}

/* Lock held. */
static void drop(size_t place)
{
    struct range range = ranges[place];

    memmove(&ranges[place], &ranges[place + 1], (--count - place) * sizeof(*ranges));
    if (range.is_ours)
        munmap((void *) range.base, range.size);
}

void host_free_context(uint64_t context_id)
{
    pthread_rwlock_wrlock(&lock);
    for (size_t i = count; i-- > 0;)
        if (ranges[i].context_id == context_id)
            drop(i);
    pthread_rwlock_unlock(&lock);
}

static CUresult allocate(struct work_context *work, void **pointer, size_t bytes,
                         unsigned int flags)
{
    CUresult result;
    void *base;

    REQUIRE(pointer && bytes && !(flags & ~(unsigned int) ALLOC_FLAGS));
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = add(work, base, bytes, flags, true);
    if (result == CUDA_SUCCESS)
        *pointer = base;
    else
        munmap(base, bytes);
    return result;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    return allocate(work, pp, bytesize, Flags);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    return allocate(work, pp, bytesize, 0);
}

static CUresult forget(void *base, bool is_ours, CUresult otherwise)
{
    const struct range *range;
    CUresult result = otherwise;
    struct memory_info info;

    if (host_find((uint64_t) base, &info))
        queue_drain(info.device); /* copies from and to it finish first */
    pthread_rwlock_wrlock(&lock);
    range = find((uint64_t) base);
    if (range && range->base == (uint64_t) base && range->is_ours == is_ours) {
        drop((size_t) (range - ranges));
        result = CUDA_SUCCESS;
    }
    pthread_rwlock_unlock(&lock);
    return result;
}

CUresult cuMemFreeHost(void *p)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    return p ? forget(p, true, CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(p && bytesize && !(Flags & ~(unsigned int) REGISTER_FLAGS));
    return add(work, p, bytesize, Flags, false);
}

CUresult cuMemHostUnregister(void *p)
{
    struct work_context *work;

    ENTER_CONTEXT(&work);
    REQUIRE(p);
    return forget(p, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    struct memory_info info;

    ENTER();
    REQUIRE(pdptr && !Flags && memory_find((uint64_t) p, &info));
    *pdptr = (CUdeviceptr) p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    struct memory_info info;

    ENTER();
    REQUIRE(pFlags && host_find((uint64_t) p, &info));
    *pFlags = info.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
