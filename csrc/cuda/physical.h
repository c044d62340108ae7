/* SPDX-License-Identifier: Apache-2.0 */
/* physical.h -- physical memory that has handles: one record for each, charged until all is gone.
 *
 * The driver keeps such memory until its handle was released as often as it was given out, and
 * nothing maps it or is bound to it. So a record counts its uses: references of its handle,
 * mappings, pins of whatever else keeps it, and calls that are with the driver. When the last one
 * ends the driver has freed the memory, and its charge is given back.
 *
 * Handles and mappings lead to records by entries of their own in the table of allocations: memory
 * may be mapped without a handle, and the number of a handle that is gone may come again for other
 * memory.
 *
 * A call that may end a use takes it out of the table before the driver is asked, since handle and
 * address may be given out again at once. It goes on holding the record, and drops it, or puts the
 * use back, when the driver has answered: so nothing is given back while a call can still fail.
 */
#ifndef PYVGPU_CUDA_PHYSICAL_H
#define PYVGPU_CUDA_PHYSICAL_H

#include "allocations.h"
#include "hooks.h"

struct binding;

#define PLACE_NOWHERE (-1) /* a device that the quota does not have */
#define PLACE_ON_HOST (-2)

/* Where a location is: the index of a device in the quota, or one of the above. */
int physical_place(const CUmemLocation *location);

struct physical {
    struct allocation charge; /* its address is the handle; no bytes: nothing is charged for it */
    uint64_t uses;
    struct binding *bound; /* to a multicast object (multicast.c) */
    int shared;            /* others may have it, and keep it when this process has done with it */
    int foreign;           /* of another container: this process pays for what it maps (export.h) */
};

/* Remember memory that the driver has just put under *handle*, *bytes* of it charged to *device*;
 * the handle has one reference. NULL without memory. */
struct physical *physical_enter(CUmemGenericAllocationHandle handle, unsigned device,
                                uint64_t bytes);

/* The record that *handle* leads to, held until it is dropped; NULL if it is unknown. */
struct physical *physical_hold(CUmemGenericAllocationHandle handle);

/* The same for what is mapped at *address*; *mapping* says where it begins, and its bytes. */
struct physical *physical_hold_mapped(CUdeviceptr address, struct allocation *mapping);

/* What the driver is to be asked about in place of *handle*: one that has no record is no handle,
 * though a driver may go on knowing it while its memory is mapped, and would not be charged. */
static inline CUmemGenericAllocationHandle physical_handle(const struct physical *physical,
                                                           CUmemGenericAllocationHandle handle)
{
    return physical ? handle : 0;
}

/* What was held is held no more. */
void physical_drop(struct physical *physical);

/* Take one reference of *handle* away, and hold its record; NULL if the handle is unknown. */
struct physical *physical_take_reference(CUmemGenericAllocationHandle handle);

/* One more reference of *handle*; 0 if it is unknown, or has none. */
int physical_add_reference(CUmemGenericAllocationHandle handle);

/* What was held is now a reference of its handle: 0 or -ENOMEM. */
int physical_give_reference(struct physical *physical);

/* What was held is now a mapping: 0 or -ENOMEM. */
int physical_map(struct physical *physical, CUdeviceptr address, size_t bytes);

/* The record of a mapping's entry; who has taken the entry out holds it. */
static inline struct physical *physical_of(const struct allocation *mapping)
{
    return (struct physical *) (uintptr_t) mapping->owner;
}

#endif
