/* SPDX-License-Identifier: Apache-2.0 */
/* shared_memory.h -- exports and imports of device memory that processes of a container share.
 *
 * The owner pays for the memory it exports, and a process of the same container that opens it does
 * not pay again. Exported memory may outlive its owner's free, and its owner: it stays charged
 * until no process has it open any more. For that, every export and every import is one entry of a
 * table in the usage file. An entry is one word and its bytes, written by its owner, and removed by
 * it or by the process that reaps its slot; no sum is stored, so that kill -9 at any instruction
 * loses nothing.
 *
 * An export and its imports find each other by a key. A handle that consists of bytes gives their
 * hash. A descriptor has no name that two processes know; its export gets a new key, and the
 * descriptor is marked with it (fd_marker.h). So a process that has a descriptor can tell its
 * export, and:
 *
 *   an export ends when it was freed, or its owner is dead, and no import of it is left in a live
 *   process, and no copy of a descriptor that carries it is open anywhere.
 *
 * A descriptor that cannot be marked, or a handle that does not lead to its export, has no known
 * end: such an export stays charged until no process of the container is left.
 *
 * Knows no CUDA. No lock; all calls may come from several threads, for several links.
 */
#ifndef PYVGPU_CORE_SHARED_MEMORY_H
#define PYVGPU_CORE_SHARED_MEMORY_H

#include "core/region.h"

#include <stddef.h>

/* A link is the index of an entry, plus 1; 0 is none. */
typedef uint16_t link_t;

/* The key of a handle of *size* bytes, or of any other data that both sides know; never 0. */
uint64_t shared_memory_key(const void *bytes, size_t size);

/* A unique key. */
uint64_t shared_memory_new_key(const struct region *region);

/* Enter an export of this process, which is charged *bytes* on *device* for it. 0: the table is
 * full, and the memory must not be exported. */
link_t shared_memory_export(struct region *region, uint64_t key, unsigned device, uint64_t bytes);

/* The key of a link of this process: the bits of it that links store. */
uint64_t shared_memory_key_of(const struct region *region, link_t link);

/* Whether an export with one key matches an import with the other. */
static inline int shared_memory_same_key(uint64_t key, uint64_t other)
{
    return ((key ^ other) >> LINK_HASH_SHIFT) == 0;
}

/* *descriptor* carries the memory exported with *key* by this process, or by the one that it was
 * imported from. 0: the export has ended, and the descriptor must not be given out. */
int shared_memory_carry(struct region *region, uint64_t key, int descriptor);

/* The same for a handle whose end cannot be observed. */
int shared_memory_lose_track(struct region *region, uint64_t key);

/* This process's export has *bytes* now. */
void shared_memory_resize(struct region *region, link_t link, uint64_t bytes);

/* The driver refused to export it: no process can have it, and its owner holds it as before. */
void shared_memory_cancel_export(struct region *region, link_t link);

/* The owner has freed its exported memory. 1: no process can have it open, the entry is gone and
 * the caller refunds the charge. 0: it stays charged until shared_memory_collect() returns it. */
int shared_memory_end_export(struct region *region, link_t link);

/* Whether this process found out such things less than 250 ms ago; if not, it is about to. */
int shared_memory_is_early(void);

/* Bytes on *device* that this process had exported and freed, and that no process has open any
 * more; their entries are gone, and the caller refunds them. Costs one load if there are none.
 * Imports of dead processes count until those are reaped, which happens before a charge is refused:
 * so collect after a refusal, and charge again. *early*, also below: leave out what takes long to
 * find out, since it is too early for that (shared_memory_is_early). */
uint64_t shared_memory_collect(struct region *region, unsigned device, int early);

/* This process is about to open the memory with *key*; call this before the driver. *paid* says
 * whether an export of this container matches, so that the memory is charged already. 0: the table
 * is full, and the memory must not be opened. */
link_t shared_memory_import(struct region *region, uint64_t key, int *paid);

/* The export of this container that a descriptor carries. */
struct shared_memory_match {
    uint64_t key;
    uint64_t bytes;
    unsigned device;
};

/* Find it; 0 if there is none, or it is not tracked. The caller keeps the descriptor open until the
 * import is written. */
int shared_memory_match(struct region *region, int descriptor, struct shared_memory_match *match);

/* The imported memory was closed, could not be opened, or is charged to this process itself. */
void shared_memory_end_import(struct region *region, link_t link);

/* The slot's owner is dead: remove its imports. The caller holds the slot's lock, as below. */
void shared_memory_close_imports(const struct region *region, unsigned slot);

/* The part of a dead slot's charge on *device* that stays charged, since others have it open or may
 * open it. The entries of the rest are gone. */
uint64_t shared_memory_orphaned(struct region *region, unsigned slot, unsigned device, int early);

/* Nothing of the slot is left: remove all of its entries. */
void shared_memory_forget(const struct region *region, unsigned slot);

#endif
