/* SPDX-License-Identifier: Apache-2.0 */
/* heap.h -- allocates one device's memory in this process; does not count it against the device.
 *
 * A heap has a range of addresses that no program can use as host addresses, and a sparse file with
 * the bytes, mapped elsewhere. It is cut into blocks of 2 MiB: a large allocation is a run of
 * blocks, a small one an object of a block that holds objects of one size. The range is several
 * times the device's memory, so addresses never run out before bytes do.
 */
#ifndef PYVGPU_SIMULATOR_HEAP_H
#define PYVGPU_SIMULATOR_HEAP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HEAP_BLOCK UINT64_C(0x200000)
#define HEAP_UNIT  UINT64_C(512)
#define HEAP_LARGE UINT64_C(0x100001) /* allocations of this size and more take whole blocks */

enum { HEAP_CLASSES = 24 };

/* Small allocations of one group share no block with those of the other. */
enum heap_group { HEAP_PLAIN, HEAP_COUNTED /* charged by the block */, HEAP_GROUPS };

struct allocation {
    uint64_t base;
    uint64_t size;    /* as requested */
    uint64_t charged; /* to the machine, by the heap's caller */
    uint64_t context_id;
    uint64_t id;
    uint8_t *bytes;
    void *owner;     /* the pool, the array or the mapping, depending on kind */
    uint64_t copies; /* a bit for each other device that has a copy, charged there */
    uint32_t flags;
    uint32_t share;     /* by which it is exported (share.h), counted from 1; 0: none */
    uint32_t next_free; /* objects only: the next free one of the block, counted from 1 */
    uint8_t kind;
    bool is_live;
    bool is_touched;   /* it may have been written to */
    bool is_shown;     /* to the host, at its own address */
    bool has_no_bytes; /* the bytes are not this heap's: leave the file alone */
};

struct heap_slab;

struct heap {
    pthread_mutex_t lock;
    uint64_t base;
    uint64_t span;
    uint8_t *bytes; /* host address of the bytes of base */
    int fd;         /* of the file, to map parts of it again */
    dev_t file_device;
    ino_t file_inode;
    bool has_name;    /* the file can be opened by others */
    uintptr_t *table; /* content of each block: 0, a run, or a slab (lowest bit set) */
    uint64_t blocks;
    uint64_t low;                                         /* no free block below it */
    uint64_t high;                                        /* no used block at or above it */
    struct heap_slab *partial[HEAP_GROUPS][HEAP_CLASSES]; /* slabs with room, by class */
};

/* Make the heap, its file at path; memory is the device's. 0 or -errno. */
int heap_open(struct heap *heap, const char *path, uint64_t memory);

/* All of these under heap->lock. */
struct allocation *heap_allocate(struct heap *heap, uint64_t size, enum heap_group group);

/* True: a counted block was freed with it. */
bool heap_free(struct heap *heap, struct allocation *allocation);

/* Would a small allocation of this size take a block? */
bool heap_needs_block(const struct heap *heap, uint64_t size, enum heap_group group);
struct allocation *heap_find(struct heap *heap, uint64_t address);

/* Call visit for every allocation; it may free that one. */
void heap_each(struct heap *heap,
               void (*visit)(struct heap *heap, struct allocation *allocation, void *data),
               void *data);

/* Give the file a name, so that another process can open it. 0 or -errno. */
int heap_name_file(struct heap *heap, const char *path);

/* Show the bytes of a large allocation at its own address, or hide them again. 0 or -errno. */
int heap_show(struct heap *heap, const struct allocation *allocation, bool shown);

static inline bool heap_has(const struct heap *heap, uint64_t address)
{
    return address - heap->base < heap->span;
}

#endif
