/* SPDX-License-Identifier: Apache-2.0 */
/* physical.c -- counts the uses of physical memory; see physical.h.
 *
 * A mapping's entry in the table is one use; a handle's entry is as many uses as the handle has
 * references, and keeps that number as its bytes. A thread that finds a record by an entry, under
 * the entry's lock, may add a use: the entry's own use keeps the record alive.
 */
#include "shim/cuda/memory/physical.h"
#include "shim/cuda/memory/entry.h"
#include "shim/suspension.h"

#include <stdlib.h>

int physical_place(const CUmemLocation *location)
{
    switch ((int) location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return shim_device(location->id);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return shim_device(location->localized.deviceId);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return PLACE_ON_HOST;
    default:
        return PLACE_NOWHERE;
    }
}

static void end_uses(struct physical *physical, uint64_t count)
{
    if (__atomic_sub_fetch(&physical->uses, count, __ATOMIC_ACQ_REL))
        return;
    if (unlikely(physical->bound) && !physical->shared)
        physical_drop_bindings(physical->bound);
    if (unlikely(physical->unmovable))
        suspension_count_unmovable(-1);
    entry_release(&physical->charge);
    free(physical);
}

void physical_drop(struct physical *physical)
{
    end_uses(physical, 1);
}

void physical_drop_bindings(struct binding *bindings)
{
    while (bindings) {
        struct binding *next = bindings->next;

        physical_drop(bindings->memory);
        free(bindings);
        bindings = next;
    }
}

/* Insert an entry. If its key exists, the driver reused it after a free that no hook saw. */
static int enter(const struct allocation *entry)
{
    struct allocation replaced;
    int result = allocations_insert(entry, &replaced);

    if (unlikely(result > 0))
        end_uses(physical_of(&replaced), replaced.kind == ALLOCATION_HANDLE ? replaced.bytes : 1);
    return result < 0 ? result : 0;
}

static struct allocation reference_of(struct physical *physical)
{
    return (struct allocation) {.address = physical->charge.address,
                                .bytes = 1,
                                .owner = physical,
                                .kind = ALLOCATION_HANDLE};
}

struct physical *physical_enter(CUmemGenericAllocationHandle handle, unsigned device,
                                uint64_t bytes)
{
    struct physical *physical = malloc(sizeof(*physical));
    struct allocation reference;

    if (!physical)
        return NULL;
    *physical = (struct physical) {
        .charge = {.address = handle,
                   .bytes = bytes,
                   .device = (uint8_t) device,
                   .kind = ALLOCATION_HANDLE},
        .uses = 1,
    };
    reference = reference_of(physical);
    if (enter(&reference) == 0)
        return physical;
    free(physical);
    return NULL;
}

void physical_keep_in_place(struct physical *physical)
{
    physical->unmovable = 1;
    suspension_count_unmovable(1);
}

static int hold(struct allocation *entry, void *held)
{
    *(struct physical **) held = physical_of(entry);
    __atomic_add_fetch(&physical_of(entry)->uses, 1, __ATOMIC_RELAXED);
    return 1;
}

struct physical *physical_hold(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = NULL;

    allocations_change(ALLOCATION_HANDLE, handle, hold, &physical);
    return physical;
}

struct physical *physical_hold_mapped(CUdeviceptr address, struct allocation *mapping)
{
    struct physical *physical = NULL;

    while (!physical && allocations_find_around(ALLOCATION_MAPPING, address, mapping))
        allocations_change(ALLOCATION_MAPPING, mapping->address, hold, &physical);
    return physical;
}

static int take_reference(struct allocation *entry, void *held)
{
    *(struct physical **) held = physical_of(entry);
    return --entry->bytes > 0;
}

struct physical *physical_take_reference(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = NULL;

    allocations_change(ALLOCATION_HANDLE, handle, take_reference, &physical);
    return physical;
}

static int add_reference(struct allocation *entry, void *unused)
{
    (void) unused;
    __atomic_add_fetch(&physical_of(entry)->uses, 1, __ATOMIC_RELAXED);
    entry->bytes++;
    return 1;
}

int physical_add_reference(CUmemGenericAllocationHandle handle)
{
    return allocations_change(ALLOCATION_HANDLE, handle, add_reference, NULL);
}

/* If the handle's number belongs to other memory by now, the use stays for ever: rather charge too
 * much than too little. */
static int give_reference(struct allocation *entry, void *physical)
{
    if (likely(physical_of(entry) == physical))
        entry->bytes++;
    return 1;
}

int physical_give_reference(struct physical *physical)
{
    struct allocation reference = reference_of(physical);

    return allocations_insert_or_change(&reference, give_reference, physical);
}

int physical_map(struct physical *physical, CUdeviceptr address, size_t bytes)
{
    return enter(&(struct allocation) {
        .address = address, .bytes = bytes, .owner = physical, .kind = ALLOCATION_MAPPING});
}
