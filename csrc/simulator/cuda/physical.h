/* SPDX-License-Identifier: Apache-2.0 */
/* physical.h -- memory without addresses: what a CUmemGenericAllocationHandle stands for.
 *
 * It goes when handles, mappings and bindings are gone. What may be exported has a file of its own
 * and a share; what is imported has that file too, and holds the share.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_PHYSICAL_H
#define PYVGPU_SIMULATOR_CUDA_PHYSICAL_H

#include "memory.h"

#define PHYSICAL_GRANULARITY UINT64_C(0x200000)

enum physical_kind {
    PHYSICAL_DEVICE,
    PHYSICAL_HOST,      /* charged to nobody */
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
    CUdeviceptr backing; /* in the heap; 0: bytes are a mapping of its own */
    int share;           /* SHARE_NONE: it cannot be exported */
    void *holder;        /* of an import */
    struct multicast *multicast;
};

extern pthread_rwlock_t vmm_lock; /* taken for writing by whoever calls these */

/* NULL if it is none. */
struct physical *physical_find(CUmemGenericAllocationHandle handle);

/* It may have been the last reference or pin that was taken away. */
void physical_let_go(struct physical *physical);

CUmemGenericAllocationHandle physical_handle(struct physical *physical);

/* A new one with one reference, all but its bytes filled in; NULL if there is no memory. Takes the
 * lock itself.
 */
struct physical *physical_make(enum physical_kind kind, uint64_t size,
                               const CUmemAllocationProp *properties);

/* Import what a share means; the share and its kind were looked at. Takes the lock itself. */
CUresult physical_import(int share, uint64_t id, CUmemAllocationHandleType type,
                         struct physical **physical);

/* More handles; one less (cuMemRelease). */
CUresult physical_release(CUmemGenericAllocationHandle handle);

/* What all of size bytes from address on are mapped to, and where in it; NULL: to no single one
 * (cuda/vmm.c).
 */
struct physical *vmm_physical(uint64_t address, uint64_t size, uint64_t *offset);

/* --- cuda/multicast.c --------------------------------------------------------------------------
 */

void multicast_free(struct multicast *multicast);

#endif
