/* SPDX-License-Identifier: Apache-2.0 */
/* physical.h -- reference-counted records of physical memory with handles (cuMemCreate).
 *
 * The driver keeps such memory until its handle was released as often as it was given out, and
 * nothing maps it or is bound to it. So a record counts its uses: references of its handle,
 * mappings, anything else that keeps it, and calls that are in the driver. When the last use ends,
 * the driver has freed the memory, and its charge is refunded.
 *
 * Handles and mappings lead to records by entries of their own in the allocation table: memory may
 * be mapped without a handle, and the driver may reuse a released handle's number for other memory.
 *
 * A call that may end a use takes it out of the table before the driver call, since the driver may
 * reuse handle and address at once. It still holds the record, and afterwards drops it, or puts the
 * use back: so nothing is refunded while the call can still fail.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_PHYSICAL_H
#define PYVGPU_SHIM_CUDA_MEMORY_PHYSICAL_H

#include "core/allocations.h"
#include "shim/hooks.h"

#define PLACE_NOWHERE (-1) /* a device that the quota does not have */
#define PLACE_ON_HOST (-2)

/* The place of a location: the index of a device in the quota, or one of the above. */
int physical_place(const CUmemLocation *location);

/* Memory bound to a multicast object (multicast.c), which keeps it. */
struct binding {
    struct binding *next;
    struct physical *memory; /* held */
    size_t offset;           /* in the object */
    size_t bytes;
};

struct physical {
    struct allocation charge; /* its address is the handle; no bytes: nothing is charged for it */
    uint64_t uses;
    struct binding *bound; /* if it is a multicast object */
    int shared;            /* others may have it, and keep it when this process is done with it */
    int foreign;           /* of another container: this process pays for its mappings (export.h) */
    int unmovable;         /* by a suspension, which counts it */
};

/* Register memory that the driver has just created as *handle*, with *bytes* charged to *device*;
 * the handle has one reference. NULL if allocation fails. */
struct physical *physical_enter(CUmemGenericAllocationHandle handle, unsigned device,
                                uint64_t bytes);

/* It cannot be moved by a suspension. Call this once, before others can find the record. */
void physical_keep_in_place(struct physical *physical);

/* The record of *handle*, held until it is dropped; NULL if it is unknown. */
struct physical *physical_hold(CUmemGenericAllocationHandle handle);

/* The same for the memory mapped at *address*; *mapping* gets its beginning and its bytes. */
struct physical *physical_hold_mapped(CUdeviceptr address, struct allocation *mapping);

/* The handle to pass to the driver: 0 for one without a record, since a driver may still accept it
 * while its memory is mapped, and that use would not be charged. */
static inline CUmemGenericAllocationHandle physical_handle(const struct physical *physical,
                                                           CUmemGenericAllocationHandle handle)
{
    return physical ? handle : 0;
}

/* End a hold. */
void physical_drop(struct physical *physical);

/* End the holds of a list of bindings, and free it. */
void physical_drop_bindings(struct binding *bindings);

/* Remove one reference of *handle*, and hold its record; NULL if the handle is unknown. */
struct physical *physical_take_reference(CUmemGenericAllocationHandle handle);

/* Add a reference of *handle*; 0 if it is unknown, or has none. */
int physical_add_reference(CUmemGenericAllocationHandle handle);

/* Turn a hold into a reference of its handle: 0 or -ENOMEM. */
int physical_give_reference(struct physical *physical);

/* Turn a hold into a mapping: 0 or -ENOMEM. */
int physical_map(struct physical *physical, CUdeviceptr address, size_t bytes);

/* The record of a mapping's entry; a caller that has taken the entry out holds the record. */
static inline struct physical *physical_of(const struct allocation *mapping)
{
    return (struct physical *) (uintptr_t) mapping->owner;
}

#endif
