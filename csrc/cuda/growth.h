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
    /* Have the driver give back what is not in use. */
    void (*trim)(struct growth *growth);
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
    uint64_t settled; /* charged, and held */
    uint64_t pending; /* charged for claims that are with the driver now */
    uint16_t link;    /* of all that is held, if others may have it open (links.h); 0: none */
    uint64_t relied;  /* what those would need that charged nothing, since there is room */
};

/* One request on its way. Whoever makes one settles it, whatever became of it. */
struct claim {
    struct growth *growth;
    const void *subject; /* who asks, if has_room wants to know */
    uint64_t bytes;
    uint64_t worst;   /* by which it may grow */
    uint64_t charged; /* for that, and for what others rely on */
    int begun;
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
 * after trimming, and in the end after waiting for *stream*, unless that is NULL. */
CUresult growth_reserve(struct claim *claim, const struct stream *stream);

/* Charge nothing if there is room for certain: 0 or -1. */
int growth_rely(struct claim *claim);

/* The driver has answered, or was never asked. -ENOMEM (as the ledger) if it took more than was
 * charged, and the difference does not fit either. */
int growth_settle(struct claim *claim);

/* The claim turned out to be another's; the charge goes along. */
void growth_move(struct claim *claim, struct growth *growth);

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
