/* SPDX-License-Identifier: Apache-2.0 */
/* links.h -- device memory that processes share: who exports what, and who has it open.
 *
 * The owner pays for what it exports, and a process of the same container that opens it does not
 * pay again. What is exported may outlive its owner's free, and its owner: it stays charged until
 * nobody has it open any more. For that every export and every import is one entry of a table in
 * the usage file. An entry is one word and its bytes, written by its owner, and taken away by it or
 * by whoever reaps its slot; no sum is stored, so that kill -9 at any instruction loses nothing.
 *
 * An export and its imports find each other by a key. Handles that are bytes give their hash. A
 * descriptor has no name that two processes know; its export has a new key, by which the descriptor
 * is marked (carrier.h). So who has a descriptor knows which export it is, and:
 *
 *   an export is given up when it was freed, or its owner is dead, and no import of it is left in a
 *   process that lives, and no copy of a descriptor that carries it is open anywhere.
 *
 * A descriptor that cannot be marked, or a handle that nobody could find the export by, has no end
 * that is known: such an export stays charged until no process of the container is left.
 *
 * Knows no CUDA. No lock; all calls may come from several threads, for several links.
 */
#ifndef PYVGPU_LINKS_H
#define PYVGPU_LINKS_H

#include "region.h"

#include <stddef.h>

/* A link is the place of an entry, from 1; 0 is none. */
typedef uint16_t link_t;

/* The key of a handle that is *size* bytes, or of anything else that both sides know; never 0. */
uint64_t links_key(const void *bytes, size_t size);

/* A key that nothing else has. */
uint64_t links_new_key(const struct region *region);

/* This process, which is charged *bytes* on *device* for it, lets others open it. 0: no place is
 * left, and it must not be exported. */
link_t links_export(struct region *region, uint64_t key, unsigned device, uint64_t bytes);

/* The key of a link that is this process's, as far as links keep it. */
uint64_t links_key_of(const struct region *region, link_t link);

/* Whether an export with one of them and an import with the other find each other. */
static inline int links_same_key(uint64_t key, uint64_t other)
{
    return ((key ^ other) >> LINK_HASH_SHIFT) == 0;
}

/* *descriptor* carries what was exported with *key*, by this process or by one of which it has
 * imported it. 0: it is no export any more, and must not be given out. */
int links_carry(struct region *region, uint64_t key, int descriptor);

/* The same for something of which nobody can tell when it ends. */
int links_lose_track(struct region *region, uint64_t key);

/* What this process lets others open has *bytes* now. */
void links_resize(struct region *region, link_t link, uint64_t bytes);

/* The driver refused to export it: nobody has it, and its owner holds it as before. */
void links_cancel_export(struct region *region, link_t link);

/* The owner has freed what it exported. 1: nobody can have it, the entry is gone and the charge is
 * to be refunded. 0: it stays charged, and links_collect says when. */
int links_end_export(struct region *region, link_t link);

/* Bytes on *device* that this process had exported and freed, and that nobody has open any more;
 * their entries are gone, and the caller refunds them. One load where there is nothing. What dead
 * processes had open counts until they are reaped, as they are before a charge is refused: so
 * collect after a refusal, and charge again. */
uint64_t links_collect(struct region *region, unsigned device);

/* This process is about to open what has *key*; to be called before the driver is asked. *paid*
 * tells whether an export of this container matches, so that the memory is charged already. 0: no
 * place is left, and it must not be opened. */
link_t links_import(struct region *region, uint64_t key, int *paid);

/* What a descriptor carries: an export of this container. */
struct links_match {
    uint64_t key;
    uint64_t bytes;
    unsigned device;
};

/* Find it; 0 if it is none, or one that is not tracked. The descriptor stays open until the import
 * is written. */
int links_match(struct region *region, int descriptor, struct links_match *match);

/* What was opened is closed, or could not be opened, or is paid for by this process itself. */
void links_end_import(struct region *region, link_t link);

/* The slot's owner is dead: what it had open is closed. The caller holds the slot's lock, here and
 * below. */
void links_close_imports(const struct region *region, unsigned slot);

/* The part of a dead slot's charge on *device* that others have open or may open: what stays
 * charged. The entries of the rest are gone. */
uint64_t links_orphaned(struct region *region, unsigned slot, unsigned device);

/* Nothing of the slot is left: its entries go, whatever they are. */
void links_forget(const struct region *region, unsigned slot);

#endif
