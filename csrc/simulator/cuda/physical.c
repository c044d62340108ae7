/* SPDX-License-Identifier: Apache-2.0 */
/* physical.c -- physical memory: created, charged, released. */
#include "cuda/physical.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "share.h"

enum { PHYSICAL_MAGIC = 0x70687973 };

pthread_rwlock_t vmm_lock = PTHREAD_RWLOCK_INITIALIZER;

static _Atomic uint64_t last_id;

struct physical *physical_find(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *) (uintptr_t) handle;

    if (!physical || handle % sizeof(void *) || physical->magic != PHYSICAL_MAGIC)
        return NULL;
    return physical;
}

CUmemGenericAllocationHandle physical_handle(struct physical *physical)
{
    return (CUmemGenericAllocationHandle) (uintptr_t) physical;
}

/* Such memory makes a checkpoint of the process hang. */
static void count_fabric(const struct physical *physical, int change)
{
    if (physical->kind == PHYSICAL_MULTICAST ||
        physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
        atomic_fetch_add(&process.machine->own->fabric, (uint32_t) change);
}

struct physical *physical_make(enum physical_kind kind, uint64_t size,
                               const CUmemAllocationProp *properties)
{
    struct physical *physical = calloc(1, sizeof(*physical));

    if (!physical)
        return NULL;
    *physical = (struct physical) {
        .magic = PHYSICAL_MAGIC,
        .kind = kind,
        .references = 1,
        .size = size,
        .id = atomic_fetch_add(&last_id, 1) + 1,
        .properties = *properties,
        .share = SHARE_NONE,
        .restores = process.machine->own->restores,
    };
    count_fabric(physical, 1);
    return physical;
}

static uint64_t charge_of(const struct physical *physical)
{
    return physical->kind == PHYSICAL_DEVICE ? physical->size : 0;
}

static void discharge(const struct physical *physical)
{
    if (charge_of(physical))
        machine_discharge(process.machine, physical->device, process.slot, charge_of(physical));
}

void physical_let_go(struct physical *physical)
{
    if (physical->references || physical->pins)
        return;
    if (physical->multicast)
        multicast_free(physical->multicast);
    if (physical->bytes && !physical->backing)
        munmap(physical->bytes, physical->size);
    if (physical->backing)
        memory_free(physical->backing, MEMORY_PHYSICAL);
    else if (physical->holder)
        share_let_go(process.machine, physical->holder);
    else if (physical->share != SHARE_NONE && share_end(process.machine, physical->share))
        discharge(physical);
    count_fabric(physical, -1);
    physical->magic = 0;
    free(physical);
}

static void drop(struct physical *physical)
{
    pthread_rwlock_wrlock(&vmm_lock);
    physical->references--;
    physical_let_go(physical);
    pthread_rwlock_unlock(&vmm_lock);
}

CUresult physical_release(CUmemGenericAllocationHandle handle)
{
    struct physical *physical;

    pthread_rwlock_wrlock(&vmm_lock);
    physical = physical_find(handle);
    if (physical && physical->references) {
        physical->references--;
        physical_let_go(physical);
    } else {
        physical = NULL;
    }
    pthread_rwlock_unlock(&vmm_lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static CUresult map(struct physical *physical, int fd)
{
    void *bytes = mmap(NULL, physical->size, PROT_READ | PROT_WRITE,
                       fd < 0 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, fd, 0);

    if (bytes == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    madvise(bytes, physical->size, MADV_DONTFORK);
    physical->bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult map_file_of_share(struct physical *physical, bool is_new)
{
    char path[PATH_MAX];
    CUresult result;
    int fd;

    share_path(process.machine, physical->share, path, sizeof(path));
    fd = is_new ? machine_open_file(path, O_RDWR) : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (is_new && ftruncate(fd, (off_t) physical->size)) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    result = map(physical, fd);
    close(fd);
    return result;
}

static CUresult make_exportable(struct physical *physical)
{
    CUresult result;

    if (charge_of(physical) &&
        !machine_charge(process.machine, physical->device, process.slot, charge_of(physical)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->share =
        share_make(process.machine,
                   &(struct share_order) {
                       .slot = process.slot,
                       .device = physical->device,
                       .kind = physical->kind == PHYSICAL_DEVICE ? SHARE_PHYSICAL : SHARE_HOST,
                       .bytes = charge_of(physical),
                       .size = physical->size,
                   });
    if (physical->share == SHARE_NONE) {
        discharge(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = map_file_of_share(physical, true);
    return result; /* if it failed, the share goes with the memory, and the charge with the share */
}

static CUresult give_bytes(struct physical *physical)
{
    CUresult result;

    if (physical->properties.requestedHandleTypes)
        return make_exportable(physical);
    if (physical->kind == PHYSICAL_HOST)
        return map(physical, -1);
    result =
        memory_allocate_on(physical->device, MEMORY_PHYSICAL, physical->size, &physical->backing);
    if (result == CUDA_SUCCESS)
        physical->bytes = memory_translate(physical->backing, physical->size);
    return result;
}

CUresult physical_import(int share, uint64_t id, CUmemAllocationHandleType type,
                         struct physical **made)
{
    const struct machine_share *record = share_read(process.machine, share);
    bool is_host = record->kind == SHARE_HOST;
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = type,
        .location = {.type = is_host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE},
    };
    struct physical *physical;
    CUresult result;

    for (int i = 0; i < process.device_count; i++)
        if (!is_host && process.devices[i] == (int) record->device)
            properties.location.id = i;
    physical = physical_make(is_host ? PHYSICAL_HOST : PHYSICAL_DEVICE, record->size, &properties);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->device = record->device;
    physical->share = share;
    physical->holder = share_hold(process.machine, share, id, true);
    if (!physical->holder) {
        physical->share = SHARE_NONE;
        drop(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = map_file_of_share(physical, false);
    if (result == CUDA_SUCCESS)
        *made = physical;
    else
        drop(physical);
    return result;
}

/* --- the API ---------------------------------------------------------------------------------- */

static bool is_host_memory(const CUmemAllocationProp *properties)
{
    return properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
           properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_properties(const CUmemAllocationProp *properties, int *device)
{
    REQUIRE(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    *device = 0;
    if (properties->requestedHandleTypes &
        ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (is_host_memory(properties))
        return CUDA_SUCCESS;
    REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
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
    REQUIRE(handle && size && size % PHYSICAL_GRANULARITY == 0 && !flags);
    result = check_properties(prop, &device);
    if (result != CUDA_SUCCESS)
        return result;
    physical = physical_make(is_host_memory(prop) ? PHYSICAL_HOST : PHYSICAL_DEVICE, size, prop);
    if (!physical)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->device = (uint32_t) device;
    result = give_bytes(physical);
    if (result == CUDA_SUCCESS)
        *handle = physical_handle(physical);
    else
        drop(physical);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER();
    return physical_release(handle);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    const struct physical *physical;

    ENTER();
    physical = physical_find(handle);
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
        *granularity = PHYSICAL_GRANULARITY;
    return result;
}
