/* SPDX-License-Identifier: Apache-2.0 */
/* growth.h -- device memory that the driver takes in chunks for what it serves from them.
 *
 * Memory pools and the memory of graphs grow inside the driver, and keep what is freed. Their
 * charge follows what they hold: before a request, the most by which it could make them grow is
 * charged; after it, the charge is settled to what the driver says that they hold.
 */
#ifndef PYVGPU_CUDA_GROWTH_H
#define PYVGPU_CUDA_GROWTH_H

#include "cuda/stream.h"
#include "shim.h"

#define GROWTH_CHUNK (UINT64_C(32) << 20) /* the driver takes multiples of this (seen on 12.x) */

/* What so many bytes make a thing grow by at most; what is too much to be counted stays so. */
static inline uint64_t growth_chunks(uint64_t bytes)
{
    return bytes > UINT64_MAX / 2 ? bytes : (bytes + GROWTH_CHUNK - 1) & ~(GROWTH_CHUNK - 1);
}

struct claim;
struct growth;

/* What the driver is asked. Never with a lock held. */
struct growth_source {
    /* What is held now; 0 if the driver would not say. */
    int (*read_held)(const struct growth *growth, uint64_t *held);
    /* Whether it is certain that the driver serves the claim without growing. */
    int (*has_room)(const struct growth *growth, const struct claim *claim);
    /* Have the driver give back what is not in use, no more than *bytes* if it can do that. It does
     * not wait for the device. */
    void (*trim)(struct growth *growth, uint64_t bytes);
    /* What is held is now *more* than it was (less: negative), with *claim* settled. May be NULL;
     * called with the lock held. */
    void (*note_held)(struct growth *growth, const struct claim *claim, int64_t more);
};

/* One thing that grows. It lives for as long as the process. */
struct growth {
    const struct growth_source *source;
    struct growth *next;
    unsigned device; /* index in the quota */
    int locked;
    unsigned version; /* counted up by whoever settles */
    unsigned users;   /* claims on their way, and threads that ask about it */
    uint64_t claims;  /* that were ever made */
    unsigned asking;  /* claims that are covered, and so are or may be with the driver */
    uint64_t held;    /* as the driver said last */
    uint64_t settled; /* charged, and held */
    uint64_t pending; /* charged for claims that are with the driver now */
    int is_short;     /* the last claim that charged at first did not fit */
    unsigned trims;   /* on their way: no claim relies on room meanwhile */
    uint16_t link;    /* of all that is held, if others may have it open (links.h); 0: none */
    uint64_t relied;  /* what those would need that charged nothing, since there is room */
};

/* One request on its way. Whoever makes one settles it, whatever became of it. */
struct claim {
    struct growth *growth;
    const void *subject; /* who asks, if has_room wants to know */
    uint64_t address;    /* of the block that was given, if note_held wants to know; */
    uint64_t fresh;      /* and what it takes of what was not known to be free */
    uint64_t bytes;
    uint64_t worst;   /* by which it may grow */
    uint64_t charged; /* for that, and for what others rely on */
    int begun;
    int asking;
    int alone;        /* no other claim or trim had a part in what happened since it was covered */
    unsigned version; /* of the growth then */
    int relying;
    int captured; /* by a stream: nothing is taken now */
};

/* Whether anything grows in this process; not in most programs. */
extern struct growth *growths;

/* Others may open what is held from now on; *link*, of no bytes, is written with what that is. 0 if
 * they may already, by another link. */
int growth_export(struct growth *growth, uint16_t link);

/* Nothing is held any more, and nothing will be. */
void growth_end_export(struct growth *growth);

/* From now on *growth* is settled and trimmed with all others. */
void growth_register(struct growth *growth);

/* Cover a claim before the driver is asked: by a charge, or else by room that is charged already,
 * or by a charge after trimming. Nothing here waits for *stream* (NULL: there is none) or for the
 * device: the thread that lets the stream go on may be the one that is in the call. */
CUresult growth_reserve(struct claim *claim, const struct stream *stream);

/* Charge nothing if there is room for certain: 0 or -1. */
int growth_rely(struct claim *claim);

/* The driver has answered, or was never asked. -ENOMEM (as the ledger) if it took more than was
 * charged, and the difference does not fit either. */
int growth_settle(struct claim *claim);

/* The claim turned out to be another's; the charge goes along. */
void growth_move(struct claim *claim, struct growth *growth);

/* Around a call that makes the driver give memory back: no claim begins to rely on room between
 * them, and claims that do are waited for, for up to a millisecond. The second says whether
 * *growth* may have shrunk, even if it grew for another claim at the same time. */
struct growth_trim {
    uint64_t held;
    unsigned version;
    int alone;
};
void growth_begin_trim(struct growth *growth, struct growth_trim *trim);
int growth_end_trim(struct growth *growth, const struct growth_trim *trim);

/* Keep *growth* as it is, for asking the driver about it. */
void growth_hold(struct growth *growth);
void growth_let_go(struct growth *growth);

void growth_reread_one(struct growth *growth);
void growth_reread_all(int device);

/* Settle everything on *device*, or on all with -1, to what is held now. */
static inline void growth_reread(int device)
{
    if (unlikely(__atomic_load_n(&growths, __ATOMIC_ACQUIRE) != NULL))
        growth_reread_all(device);
}

/* Give back what is held on *device* and not used; 0 if nothing grows. */
int growth_make_room(unsigned device);

void growth_after_fork(void);

#endif
