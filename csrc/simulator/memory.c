/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c -- allocations of this process: charged to the machine, addresses from the heaps. */
#include "memory.h"

#include "clock.h"
#include "heap.h"
#include "share.h"

#define MIB          UINT64_C(0x100000)
#define POLL_DEAD_NS 100000000

static _Atomic uint64_t last_allocation;
static _Atomic unsigned int left_count; /* allocations of MEMORY_LEFT */

uint64_t memory_round(uint64_t bytes)
{
    const struct law *law = &process.machine->config.law;
    uint64_t unit = bytes >= MIB ? law->large_bytes : law->small_bytes;

    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* Under heap->lock. Managed memory cannot be checkpointed, so it is counted. */
static void count_managed(enum memory_kind kind, int change)
{
    if (kind == MEMORY_MANAGED)
        atomic_fetch_add(&process.machine->own->managed, (uint32_t) change);
}

static void describe(struct allocation *allocation, struct work_context *work,
                     enum memory_kind kind, uint64_t charged)
{
    allocation->kind = (uint8_t) kind;
    allocation->charged = charged;
    allocation->copies = 0;
    allocation->context_id = work ? work->id : 0;
    allocation->id = atomic_fetch_add_explicit(&last_allocation, 1, memory_order_relaxed) + 1;
}

/* Under heap->lock. True: other processes have it open; bytes and address stay until they close it.
 */
static bool leave(struct allocation *allocation)
{
    int share = (int) allocation->share - 1;
    uint64_t id;

    if (share < 0)
        return false;
    id = share_read(process.machine, share)->id;
    allocation->share = 0;
    if (share_end(process.machine, share))
        return false;
    allocation->kind = MEMORY_LEFT;
    allocation->flags = (uint32_t) share;
    allocation->context_id = 0;
    allocation->id = id;
    atomic_fetch_add(&left_count, 1);
    return true;
}

/* Under heap->lock. */
static void give(struct heap *heap, struct allocation *allocation)
{
    if (heap_free(heap, allocation))
        machine_discharge(process.machine, memory_heap_device(heap), process.slot, HEAP_BLOCK);
}

static void give_back_if_left(struct heap *heap, struct allocation *allocation, void *data)
{
    const struct machine_share *share;

    (void) data;
    if (allocation->kind != MEMORY_LEFT)
        return;
    share = share_read(process.machine, (int) allocation->flags);
    if (share->id == allocation->id && atomic_load(&share->state) != SHARE_FREE)
        return;
    atomic_fetch_sub(&left_count, 1);
    give(heap, allocation);
}

/* Under heap->lock. The allocation at address that programs can use. */
static struct allocation *find(struct heap *heap, uint64_t address)
{
    struct allocation *found = heap_find(heap, address);

    return found && found->kind != MEMORY_LEFT ? found : NULL;
}

/* Pools and graphs charge what they reserve, so their blocks charge nothing. Memory that is mapped
 * to an array is charged itself.
 */
static bool is_free_of_charge(enum memory_kind kind)
{
    return kind == MEMORY_POOL || kind == MEMORY_GRAPH || kind == MEMORY_UNBACKED;
}

/* Under heap->lock. Allocate from a group; charge the block if it needs a new one. */
static struct allocation *take(struct heap *heap, uint32_t device, uint64_t size,
                               enum heap_group group)
{
    bool takes_block = group == HEAP_COUNTED && heap_needs_block(heap, size, group);
    struct allocation *allocation;

    if (takes_block && !machine_charge(process.machine, device, process.slot, HEAP_BLOCK))
        return NULL;
    allocation = heap_allocate(heap, size, group);
    if (!allocation && takes_block)
        machine_discharge(process.machine, device, process.slot, HEAP_BLOCK);
    return allocation;
}

static CUresult allocate_on(struct work_context *work, uint32_t device, enum memory_kind kind,
                            uint64_t bytes, bool is_shown, CUdeviceptr *address)
{
    /* Physical memory is mapped by whole blocks, host-visible memory by whole pages. A block holds
     * two allocations of exactly 1 MiB where the device counts blocks; elsewhere 1 MiB is a large
     * allocation of its own. */
    bool is_whole = kind == MEMORY_PHYSICAL || is_shown ||
                    (bytes == MIB && !process.machine->config.law.small_blocks);
    uint64_t least = is_whole ? HEAP_LARGE : 0;
    uint64_t size = bytes < least ? least : bytes;
    bool is_in_block =
        process.machine->config.law.small_blocks && size < HEAP_LARGE && !is_free_of_charge(kind);
    uint64_t charged = is_in_block || is_free_of_charge(kind) ? 0 : memory_round(bytes);
    struct heap *heap = memory_heap(device);
    struct allocation *allocation;
    int failed = 0;

    if (!heap)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (charged && !machine_charge(process.machine, device, process.slot, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&heap->lock);
    if (atomic_load_explicit(&left_count, memory_order_relaxed))
        heap_each(heap, give_back_if_left, NULL);
    allocation = take(heap, device, size, is_in_block ? HEAP_COUNTED : HEAP_PLAIN);
    if (allocation) {
        allocation->size = bytes;
        describe(allocation, work, kind, charged);
        *address = allocation->base;
        if (is_shown) {
            allocation->is_touched = allocation->is_shown = true;
            failed = heap_show(heap, allocation, true);
            if (failed)
                give(heap, allocation);
        }
        if (!failed)
            count_managed(kind, 1);
    }
    pthread_mutex_unlock(&heap->lock);
    if (allocation && !failed)
        return CUDA_SUCCESS;
    if (charged)
        machine_discharge(process.machine, device, process.slot, charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_allocate(struct work_context *work, enum memory_kind kind, uint64_t bytes,
                         CUdeviceptr *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_on(work, work->device, kind, bytes, kind == MEMORY_MANAGED, address);
}

CUresult memory_allocate_on(uint32_t device, enum memory_kind kind, uint64_t bytes,
                            CUdeviceptr *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_on(NULL, device, kind, bytes, false, address);
}

CUresult memory_allocate_shown(uint32_t device, enum memory_kind kind, uint64_t bytes,
                               CUdeviceptr *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate_on(NULL, device, kind, bytes, true, address);
}

CUresult memory_adopt(struct work_context *work, enum memory_kind kind, uint32_t device,
                      void *bytes, uint64_t size, void *owner, CUdeviceptr *address)
{
    struct heap *heap = memory_heap(device);
    struct allocation *allocation;

    if (!heap)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&heap->lock);
    /* Whole blocks, so that no small neighbour shares the block without bytes. */
    allocation = heap_allocate(heap, size < HEAP_LARGE ? HEAP_LARGE : size, HEAP_PLAIN);
    if (allocation) {
        allocation->size = size;
        describe(allocation, work, kind, 0);
        allocation->bytes = bytes;
        allocation->owner = owner;
        allocation->has_no_bytes = true;
        *address = allocation->base;
    }
    pthread_mutex_unlock(&heap->lock);
    return allocation ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Under heap->lock. */
static void discharge_copies(struct allocation *allocation)
{
    for (uint32_t device = 0; allocation->copies >> device; device++)
        if (allocation->copies >> device & 1)
            machine_discharge(process.machine, device, process.slot, allocation->charged);
    allocation->copies = 0;
}

/* Under heap->lock. */
static void give_back(struct heap *heap, struct allocation *allocation)
{
    uint64_t charged = allocation->charged;

    count_managed((enum memory_kind) allocation->kind, -1);
    if (leave(allocation))
        return;
    discharge_copies(allocation);
    if (allocation->is_shown)
        heap_show(heap, allocation, false);
    give(heap, allocation);
    if (charged)
        machine_discharge(process.machine, memory_heap_device(heap), process.slot, charged);
}

CUresult memory_free(CUdeviceptr address, enum memory_kind kind)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *allocation;

    if (!heap)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&heap->lock);
    allocation = find(heap, address);
    if (allocation && allocation->base == address && allocation->kind == kind)
        give_back(heap, allocation);
    else
        allocation = NULL;
    pthread_mutex_unlock(&heap->lock);
    return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void free_if_of_context(struct heap *heap, struct allocation *allocation, void *data)
{
    void *owner = allocation->owner;
    uint64_t size = allocation->size;
    enum memory_kind kind = (enum memory_kind) allocation->kind;

    if (allocation->context_id != *(uint64_t *) data)
        return;
    give_back(heap, allocation);
    if (kind == MEMORY_IMPORTED)
        import_end(owner);
    if (kind == MEMORY_POOL)
        pool_forget(owner, size);
}

void memory_free_context(uint64_t context_id)
{
    for (uint32_t device = 0; device < process.machine->config.unit_count; device++) {
        struct heap *heap = memory_heap_if_open(device);

        if (!heap)
            continue;
        pthread_mutex_lock(&heap->lock);
        heap_each(heap, free_if_of_context, &context_id);
        pthread_mutex_unlock(&heap->lock);
    }
    host_free_context(context_id);
}

static int ordinal_of(uint32_t device)
{
    for (int ordinal = 0; ordinal < process.device_count; ordinal++)
        if (process.devices[ordinal] == (int) device)
            return ordinal;
    return -1;
}

bool memory_find(uint64_t address, struct memory_info *info)
{
    struct heap *heap = memory_heap_of(address);
    const struct allocation *found;

    if (!heap)
        return vmm_find(address, info) || host_find(address, info);
    pthread_mutex_lock(&heap->lock);
    found = find(heap, address);
    if (found)
        *info = (struct memory_info) {
            .base = found->base,
            .size = found->size,
            .charged = found->charged,
            .kind = (enum memory_kind) found->kind,
            .device = memory_heap_device(heap),
            .ordinal = ordinal_of(memory_heap_device(heap)),
            .context_id = found->context_id,
            .id = found->id,
            .flags = found->flags,
            .pool = found->kind == MEMORY_POOL ? found->owner : NULL,
        };
    pthread_mutex_unlock(&heap->lock);
    if (found && info->kind == MEMORY_POOL && !info->pool)
        return placement_find(address, info);
    return found;
}

static struct allocation *find_base(struct heap *heap, uint64_t address)
{
    struct allocation *found = find(heap, address);

    return found && found->base == address ? found : NULL;
}

void memory_set_owner(CUdeviceptr address, void *owner)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *found;

    if (!heap)
        return;
    pthread_mutex_lock(&heap->lock);
    found = find_base(heap, address);
    if (found)
        found->owner = owner;
    pthread_mutex_unlock(&heap->lock);
}

void memory_set_flags(CUdeviceptr address, unsigned int flags)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *found;

    if (!heap)
        return;
    pthread_mutex_lock(&heap->lock);
    found = find_base(heap, address);
    if (found)
        found->flags = flags;
    pthread_mutex_unlock(&heap->lock);
}

int memory_share(CUdeviceptr address)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *found;
    int share = SHARE_NONE;

    if (!heap)
        return SHARE_NONE;
    pthread_mutex_lock(&heap->lock);
    found = find_base(heap, address);
    if (found && (found->kind == MEMORY_DEVICE || found->kind == MEMORY_PHYSICAL)) {
        if (!found->share)
            found->share = (uint32_t) (share_make(process.machine,
                                                  &(struct share_order) {
                                                      .slot = process.slot,
                                                      .device = memory_heap_device(heap),
                                                      .kind = SHARE_LINEAR,
                                                      .bytes = found->charged,
                                                      .size = found->size,
                                                  }) +
                                       1);
        share = (int) found->share - 1;
    }
    pthread_mutex_unlock(&heap->lock);
    return share;
}

CUresult memory_copy_to(CUdeviceptr address, uint32_t device)
{
    struct heap *heap = memory_heap_of(address);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct allocation *found;

    if (!heap)
        return result;
    pthread_mutex_lock(&heap->lock);
    found = find(heap, address);
    if (found && found->kind == MEMORY_MANAGED) {
        uint64_t copy = UINT64_C(1) << device;

        result = CUDA_SUCCESS;
        if (memory_heap_device(heap) != device && !(found->copies & copy)) {
            if (machine_charge(process.machine, device, process.slot, found->charged))
                found->copies |= copy;
            else
                result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&heap->lock);
    return result;
}

void *memory_owner(CUdeviceptr address, enum memory_kind kind)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *found;
    void *owner = NULL;

    if (!heap)
        return NULL;
    pthread_mutex_lock(&heap->lock);
    found = find_base(heap, address);
    if (found && found->kind == kind)
        owner = found->owner;
    pthread_mutex_unlock(&heap->lock);
    return owner;
}

void *memory_chunk(CUdeviceptr address, uint64_t *length)
{
    struct heap *heap = memory_heap_of(address);
    struct allocation *found;
    void *bytes = NULL;

    if (!heap)
        return vmm_chunk(address, length);
    pthread_mutex_lock(&heap->lock);
    found = find(heap, address);
    if (found) {
        found->is_touched = true;
        bytes = found->bytes + (address - found->base);
        *length = found->base + found->size - address;
    }
    pthread_mutex_unlock(&heap->lock);
    return bytes;
}

void memory_get_info(uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    static _Atomic uint64_t next_poll;
    uint64_t now = clock_coarse();
    struct cgroup_figures own = {0};
    uint64_t used;

    if (now >= atomic_load_explicit(&next_poll, memory_order_relaxed)) {
        atomic_store_explicit(&next_poll, now + POLL_DEAD_NS, memory_order_relaxed);
        machine_reap(process.machine, false);
    }
    *total_bytes = process.machine->config.devices[device].memory_bytes;
    used = machine_used_bytes(process.machine, device);
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
    if (cgroup_read(process.machine, device, &process.machine->state->chains[process.slot], &own)) {
        uint64_t left = own.used < own.hard ? own.hard - own.used : 0;
        if (*total_bytes > own.hard)
            *total_bytes = own.hard;
        if (*free_bytes > left)
            *free_bytes = left;
    }
}
