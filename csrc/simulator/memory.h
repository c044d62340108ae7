/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h -- device memory of this process: addresses, bytes and charges.
 *
 * A device address is never a host address: nothing but this module can read device memory, as on
 * real hardware (managed memory excepted). The bytes are in one sparse file for each process and
 * device. Each device has a range of addresses of its own, kept for the process's life.
 */
#ifndef PYVGPU_SIMULATOR_MEMORY_H
#define PYVGPU_SIMULATOR_MEMORY_H

#include "process.h"

enum memory_kind {
    MEMORY_DEVICE,   /* cuMemAlloc and its like; freed by cuMemFree */
    MEMORY_MANAGED,  /* host and device, at one address */
    MEMORY_POOL,     /* stream-ordered; charged by its pool */
    MEMORY_GRAPH,    /* of a graph's node; charged by the device's reserve for graphs */
    MEMORY_ARRAY,    /* behind a CUarray */
    MEMORY_UNBACKED, /* behind a CUarray that memory is mapped to; charged with that */
    MEMORY_MODULE,   /* a module's variables */
    MEMORY_IMPORTED, /* another process's, opened by a handle; charged there */
    MEMORY_VIRTUAL,  /* a reserved range of addresses (cuMemAddressReserve) */
    MEMORY_PHYSICAL, /* behind a CUmemGenericAllocationHandle; has no address for programs */
    MEMORY_HOST,     /* pinned or registered host memory: base is the host address */
    MEMORY_EXTERNAL, /* a buffer of another API's memory; charged with that */
    MEMORY_LEFT,     /* freed, but others still have it open: an address that is not given out */
};

struct memory_info {
    uint64_t base;
    uint64_t size;    /* as requested */
    uint64_t charged; /* bytes charged to the device */
    enum memory_kind kind;
    uint32_t device; /* of the machine */
    int ordinal;
    uint64_t context_id; /* 0: none (pools, VMM) */
    uint64_t id;         /* of the allocation, for CU_POINTER_ATTRIBUTE_BUFFER_ID */
    unsigned int flags;  /* host memory: cuMemHostAlloc's; managed: cuMemAllocManaged's */
    void *pool;          /* CUmemoryPool of MEMORY_POOL */
};

/* The bytes charged for a request of so many bytes, by the machine's law. */
uint64_t memory_round(uint64_t bytes);

/* Charge and allocate. Kinds up to MEMORY_MODULE. */
CUresult memory_allocate(struct work_context *work, enum memory_kind kind, uint64_t bytes,
                         CUdeviceptr *address);

/* The same in no context (pools, VMM): it lives until it is freed. */
CUresult memory_allocate_on(uint32_t device, enum memory_kind kind, uint64_t bytes,
                            CUdeviceptr *address);

/* The same, with the bytes mapped at the address for the host, too. */
CUresult memory_allocate_shown(uint32_t device, enum memory_kind kind, uint64_t bytes,
                               CUdeviceptr *address);

/* INVALID_VALUE unless address is the base of a live allocation of this kind. */
CUresult memory_free(CUdeviceptr address, enum memory_kind kind);

/* Free everything that was allocated in a context. */
void memory_free_context(uint64_t context_id);

/* Charge managed memory to another device, too, until it is freed. */
CUresult memory_copy_to(CUdeviceptr address, uint32_t device);

/* Describe the device or pinned host memory at address. False: nothing of ours. */
bool memory_find(uint64_t address, struct memory_info *info);

/* The host pointer behind a device address, and how many bytes are in one piece from there on.
 * NULL: not device memory of this process. To be used only while the allocation lives.
 */
void *memory_chunk(CUdeviceptr address, uint64_t *length);

/* The same for all memory that a device can access: pinned host memory, too. */
void *memory_reach(CUdeviceptr address, uint64_t *length);

/* The same, if all of size bytes are in one piece. */
void *memory_translate(CUdeviceptr address, uint64_t size);

/* Write bytes at once, without waiting. False if the range is not device memory. */
bool memory_write(CUdeviceptr address, const void *bytes, uint64_t size);

/* Free and total bytes of a device of the machine. */
void memory_get_info(uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

/* --- between the parts of memory ------------------------------------------------------------ */

struct heap;

/* The heap of a device, created by the first call. NULL if it cannot be created. */
struct heap *memory_heap(uint32_t device);

/* The same, but NULL unless it exists already. */
struct heap *memory_heap_if_open(uint32_t device);

uint32_t memory_heap_device(const struct heap *heap);

/* The heap an address belongs to; NULL if to none. */
struct heap *memory_heap_of(uint64_t address);

/* Give the file of a device's memory its name, for another process to open. */
CUresult memory_publish(uint32_t device);

/* Bytes of another process in this one (cuda/import.c). */
struct import;
void import_end(struct import *import);

/* Addresses for bytes that are elsewhere; work may be NULL. */
CUresult memory_adopt(struct work_context *work, enum memory_kind kind, uint32_t device,
                      void *bytes, uint64_t size, void *owner, CUdeviceptr *address);

/* The share that exports the linear or physical allocation at address; created by the first call.
 * SHARE_NONE: it is no such allocation, or the table is full.
 */
int memory_share(CUdeviceptr address);

/* Allocate file space before a large write to device memory: false if the file system is full. */
bool memory_make_room(void *bytes, uint64_t size);

void memory_set_flags(CUdeviceptr address, unsigned int flags);

/* Set memory_info.pool; read it back (NULL: not the base of such an allocation). */
void memory_set_owner(CUdeviceptr address, void *owner);
void *memory_owner(CUdeviceptr address, enum memory_kind kind);

/* Ranges of cuda/vmm.c and host memory of cuda/host.c. */
void *vmm_chunk(uint64_t address, uint64_t *length);
bool vmm_find(uint64_t address, struct memory_info *info);
bool host_find(uint64_t address, struct memory_info *info);
void host_free_context(uint64_t context_id);

/* A pool's block is gone with its context (cuda/pool.c). */
void pool_forget(void *pool, uint64_t bytes);

/* Find the block at address in pools whose blocks have places; false if there is none. */
bool placement_find(uint64_t address, struct memory_info *info);

/* Free a block of a pool or graph outside any stream: INVALID_VALUE if address is none. */
CUresult pool_free_now(CUdeviceptr address);

/* After a synchronisation: the device's pools release memory above their thresholds. */
void pool_trim_all(uint32_t device);

#endif
