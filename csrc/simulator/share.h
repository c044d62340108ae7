/* SPDX-License-Identifier: Apache-2.0 */
/* share.h -- exported memory ("shares"), which lives until its last holder releases it.
 *
 * A share is memory that its owner allocated and exported. While it is owned its bytes count among
 * its owner's; once the owner frees it or dies, they count on their own ("left") as long as the
 * share has a holder. A holder is an open file description with a lock on one byte of the state
 * file: either a descriptor that a program has, or sends, or a mapping that an importer keeps. The
 * kernel drops the lock of a process that dies, so no process need be notified.
 */
#ifndef PYVGPU_SIMULATOR_SHARE_H
#define PYVGPU_SIMULATOR_SHARE_H

#include "machine.h"

enum { SHARE_NONE = -1 };

enum share_kind { SHARE_LINEAR = 1, SHARE_PHYSICAL, SHARE_HOST, SHARE_POOL };

struct share_order {
    uint32_t slot;
    uint32_t device;
    enum share_kind kind;
    uint64_t bytes; /* charged to that slot */
    uint64_t size;
};

/* Create a share. SHARE_NONE: the table is full. */
int share_make(struct machine *machine, const struct share_order *order);

/* The share's record; valid while the caller holds the share. */
const struct machine_share *share_read(const struct machine *machine, int share);

/* Record that the owner is now charged *bytes* for the share. */
void share_resize(struct machine *machine, int share, uint64_t bytes);

/* The owner frees the share. True: it has no holder, and the owner gives its bytes back.
 * False: others hold it, and its bytes count on their own.
 */
bool share_end(struct machine *machine, int share);

/* Has the share a holder now? is_open: one that has its memory open, not only the means to? */
bool share_is_held(const struct machine *machine, int share, bool is_open);

/* A descriptor that stands for the share and holds it, or -1; the share that a descriptor stands
 * for, or SHARE_NONE. */
int share_descriptor(const struct machine *machine, int share);
int share_of_descriptor(const struct machine *machine, int descriptor);

/* Whether a descriptor is one of those, or of the next function. */
bool share_gave(const struct machine *machine, int descriptor);

/* A descriptor of a file that no path opens, like a dma-buf, and that holds nothing; -1 if that
 * fails. Then let it hold a share, one of several; false if the place has another share by now. */
int share_buffer(struct machine *machine);
bool share_keep(struct machine *machine, int descriptor, int share, uint64_t id);

/* Hold the share as long as this process lives; id tells it from any other share in the same
 * place. NULL if the place has another share by now, or none. */
void *share_hold(struct machine *machine, int share, uint64_t id, bool is_open);
void share_let_go(struct machine *machine, void *holder);

/* Path of the file with the share's bytes, if the owner creates one; removed with the share. */
void share_path(const struct machine *machine, int share, char *path, size_t size);

/* --- for slot.c and account.c; state->lock held ----------------------------------------------- */

/* The owner is dead: free its shares without holders; the others count on their own. */
void share_orphan(struct machine *machine, uint32_t slot);

/* Free shares on their own that have no holder any more. */
void share_reap(struct machine *machine);

/* Bytes of the shares on their own. */
uint64_t share_left_bytes(const struct machine *machine, uint32_t device);

#endif
