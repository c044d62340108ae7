/* SPDX-License-Identifier: Apache-2.0 */
/* physical.h -- physical memory without addresses (CUmemGenericAllocationHandle).
 *
 * It is freed when handles, mappings and bindings are gone. Exportable memory has a file of its own
 * and a share; an import has that file, too, and holds the share.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_PHYSICAL_H
#define PYVGPU_SIMULATOR_CUDA_PHYSICAL_H

#include "memory.h"

#define PHYSICAL_GRANULARITY UINT64_C(0x200000)

enum physical_kind {
    PHYSICAL_DEVICE,
    PHYSICAL_HOST,      /* not charged */
    PHYSICAL_MULTICAST, /* an object that memory is bound to (cuda/multicast.c) */
};

struct multicast;

struct physical {
    uint32_t magic;
    enum physical_kind kind;
    uint32_t device;
    unsigned int references; /* of handles */
    unsigned int pins;       /* mappings, bindings, tiles of arrays */
    char *bytes;
    uint64_t size;
    uint64_t id;
    CUmemAllocationProp properties;
    CUdeviceptr backing; /* in the heap; 0: bytes is a mapping of its own */
    int share;           /* SHARE_NONE: it cannot be exported */
    void *holder;        /* of an import */
    struct multicast *multicast;
    uint32_t restores; /* of the process, when it was made */
};

extern pthread_rwlock_t vmm_lock; /* callers of the following hold it for writing */

/* NULL if it is none. */
struct physical *physical_find(CUmemGenericAllocationHandle handle);

/* Free the memory if it has no reference and no pin left. */
void physical_let_go(struct physical *physical);

CUmemGenericAllocationHandle physical_handle(struct physical *physical);

/* New physical memory with one reference, all but its bytes filled in; NULL if there is no memory.
 * Takes the lock itself.
 */
struct physical *physical_make(enum physical_kind kind, uint64_t size,
                               const CUmemAllocationProp *properties);

/* Import a share; the caller has checked the share and its kind. Takes the lock itself. */
CUresult physical_import(int share, uint64_t id, CUmemAllocationHandleType type,
                         struct physical **physical);

/* Add a reference for a handle; drop one (cuMemRelease). */
CUresult physical_release(CUmemGenericAllocationHandle handle);

/* The physical memory to which all of size bytes from address on are mapped, and the offset in it;
 * NULL: not to a single one (cuda/vmm.c).
 */
struct physical *vmm_physical(uint64_t address, uint64_t size, uint64_t *offset);

/* --- cuda/multicast.c --------------------------------------------------------------------------
 */

void multicast_free(struct multicast *multicast);

#endif
