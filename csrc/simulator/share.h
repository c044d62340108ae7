/* SPDX-License-Identifier: Apache-2.0 */
/* share.h -- memory that other processes may have: it lives until the last of them lets it go.
 *
 * A share is what its owner has allocated and exported. While it is owned its bytes are among its
 * owner's; when the owner frees it or dies, they are on their own as long as somebody holds the
 * share. A holder is an open file description with a lock on one byte of the state file: either
 * a descriptor that a program has, or sends, or a mapping that an importer keeps. So nobody needs
 * to be told, whoever dies.
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
    uint64_t bytes; /* that slot is charged for it */
    uint64_t size;
};

/* Make one. SHARE_NONE: no place is left. */
int share_make(struct machine *machine, const struct share_order *order);

/* What is known of it; good as long as the caller holds it. */
const struct machine_share *share_look(const struct machine *machine, int share);

/* The owner is charged so much for it now. */
void share_resize(struct machine *machine, int share, uint64_t bytes);

/* The owner has no use for it any more. True: nobody has it, and the owner gives its bytes back.
 * False: others have it, and the bytes are theirs.
 */
bool share_end(struct machine *machine, int share);

/* Does anybody hold it now? is_open: and has its memory open, not only the means to? */
bool share_is_held(const struct machine *machine, int share, bool is_open);

/* A descriptor that means the share and holds it, or -1; the share that one means, or SHARE_NONE.
 */
int share_descriptor(const struct machine *machine, int share);
int share_of_descriptor(const struct machine *machine, int descriptor);

/* Hold it as long as this process lives; id tells it from any other that had or will have its
 * place. NULL if it is not that share any more (or cannot be). */
void *share_hold(struct machine *machine, int share, uint64_t id, bool is_open);
void share_let_go(struct machine *machine, void *holder);

/* The file with its bytes, if its owner makes one; it is removed with the share. */
void share_path(const struct machine *machine, int share, char *path, size_t size);

/* --- for slot.c and account.c; state->lock held ----------------------------------------------- */

/* The owner is dead: what nobody holds is gone, the rest is on its own. */
void share_orphan(struct machine *machine, uint32_t slot);

/* Forget what is on its own and nobody holds any more. */
void share_reap(struct machine *machine);

/* Bytes of what is on its own. */
uint64_t share_left_bytes(const struct machine *machine, uint32_t device);

#endif
