/* SPDX-License-Identifier: Apache-2.0 */
/* allocations.h -- hash table of this process's allocations: kind and address -> bytes, device,
 * owner.
 *
 * Process-local; only the ledger is shared. An address is whatever names an allocation of its kind:
 * a device address, an array, a handle. The owner is an opaque tag (a context), so that everything
 * of one owner can be taken out at once. Sharded; each shard has a spin lock that is never held
 * over a call into the driver. Linear memory that is recorded in blocks (blocks.h) is found, taken
 * and linked here like any other. Knows no CUDA.
 */
#ifndef PYVGPU_CORE_ALLOCATIONS_H
#define PYVGPU_CORE_ALLOCATIONS_H

#include <stdint.h>

enum allocation_kind {
    ALLOCATION_LINEAR,   /* a device address */
    ALLOCATION_ARRAY,    /* an array or a mipmapped array */
    ALLOCATION_EXTERNAL, /* memory of another API, imported */
    ALLOCATION_OPENED,   /* a device address of another process's memory */
    ALLOCATION_HANDLE,   /* the handle of physical memory */
    ALLOCATION_POOL,     /* a pool of another process, imported */
    ALLOCATION_MAPPING,  /* a device address at which physical memory is mapped */
    ALLOCATION_MOVED, /* managed memory on a device that it was moved to; with the device added */
};

struct allocation {
    uint64_t address; /* not 0 */
    uint64_t bytes;   /* as charged, unless its block is charged instead */
    const void *owner;
    uint32_t life; /* generation of its owner, whose record is reused */
    uint16_t link; /* its export or import (shared_memory.h); 0: it has none */
    uint8_t device : 7;
    uint8_t in_block : 1; /* the block that it lies in is charged instead */
    uint8_t kind : 7;     /* enum allocation_kind */
    uint8_t recorded : 1; /* in its block (blocks.h) and not in the table */
};

/* Insert an allocation: 0 or -ENOMEM. 1 if its address had an entry, which is then *replaced*. */
int allocations_insert(const struct allocation *allocation, struct allocation *replaced);

/* Take the entry of *address* out; 0 if there is none. */
int allocations_take(enum allocation_kind kind, uint64_t address, struct allocation *taken);

/* The same for linear memory, but only out of the table: what is recorded in blocks stays. */
int allocations_take_unrecorded(uint64_t address, struct allocation *taken);

/* Copy the entry of *address*, which stays; 0 if there is none. */
int allocations_find(enum allocation_kind kind, uint64_t address, struct allocation *found);

/* Copy the entry whose range contains *address*; 0 if there is none. Scans every entry, unless
 * *address* is the beginning of one. */
int allocations_find_around(enum allocation_kind kind, uint64_t address, struct allocation *found);

/* Pass the entry of *address* to *change* under its shard's lock; it is taken out if *change*
 * returns 0. Returns 0 if there is no entry. */
int allocations_change(enum allocation_kind kind, uint64_t address,
                       int (*change)(struct allocation *, void *), void *argument);

/* The same, but if there is no entry, *allocation* is inserted: 0 or -ENOMEM. */
int allocations_insert_or_change(const struct allocation *allocation,
                                 int (*change)(struct allocation *, void *), void *argument);

/* Set the link of an entry that has none; 0 if the entry is gone or has one already. */
int allocations_set_link(enum allocation_kind kind, uint64_t address, uint16_t link);

/* Take this exact entry out again, if it is still there; 0 if it is not. */
int allocations_take_back(const struct allocation *allocation);

/* Take out every entry of *owner*, and pass each to *gone* under its shard's lock. */
void allocations_take_owned(const void *owner, void (*gone)(const struct allocation *, void *),
                            void *argument);

/* In a forked child: forget everything. */
void allocations_after_fork(void);

#endif
