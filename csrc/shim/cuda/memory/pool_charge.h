/* SPDX-License-Identifier: Apache-2.0 */
/* pool_charge.h -- charges memory pools and graph memory, which grow in chunks inside the driver.
 *
 * Both keep memory that is freed. Their charge follows the memory that they hold: before a request,
 * the most by which it could make them grow is charged; after it, the charge is settled to the size
 * that the driver reports.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_POOL_CHARGE_H
#define PYVGPU_SHIM_CUDA_MEMORY_POOL_CHARGE_H

#include "shim/cuda/work/stream.h"
#include "shim/shim.h"

#define POOL_CHUNK (UINT64_C(32) << 20) /* the driver takes multiples of this (seen on 12.x) */

/* The most by which a request of *bytes* can make one grow; huge values stay as they are. */
static inline uint64_t pool_charge_chunks(uint64_t bytes)
{
    return bytes > UINT64_MAX / 2 ? bytes : (bytes + POOL_CHUNK - 1) & ~(POOL_CHUNK - 1);
}

struct claim;
struct context;
struct pool_charge;

/* Driver calls of a kind of growth. Called without a lock, unless noted. */
struct pool_charge_source {
    /* Bytes held now; returns 0 if the driver does not say. */
    int (*read_held)(const struct pool_charge *growth, uint64_t *held);
    /* Whether it is certain that the driver serves the claim without growing. */
    int (*has_room)(const struct pool_charge *growth, const struct claim *claim);
    /* Make the driver release unused memory, no more than *bytes* if it can limit that. Does not
     * wait for the device. */
    void (*trim)(struct pool_charge *growth, uint64_t bytes);
    /* The held bytes have changed by *more* (less: negative), with *claim* settled, or the claim
     * has fresh bytes. May be NULL; called with the lock held. */
    void (*note_held)(struct pool_charge *growth, const struct claim *claim, int64_t more);
};

/* One pool or store that grows. Lives as long as the process. */
struct pool_charge {
    const struct pool_charge_source *source;
    struct pool_charge *next;
    unsigned device; /* index in the quota */
    int locked;
    unsigned version; /* incremented by each settlement */
    unsigned users;   /* claims in progress, and threads that query it */
    uint64_t claims;  /* number of claims so far */
    unsigned asking;  /* covered claims, which may be in the driver */
    uint64_t held;    /* as the driver last reported */
    uint64_t settled; /* charged, and held */
    uint64_t pending; /* charged for claims that are in the driver now */
    int is_short;     /* the last claim that charged at first did not fit */
    unsigned trims;   /* in progress: no claim relies on room meanwhile */
    uint16_t link;   /* of all held memory, if others may have it open (shared_memory.h); 0: none */
    uint64_t relied; /* need of the claims that charged nothing, relying on room */
};

/* One request in progress. The caller settles it, whatever its outcome. */
struct claim {
    struct pool_charge *growth;
    const void *subject; /* the requester, for has_room; or NULL */
    uint64_t address;    /* of the block that was allocated, for note_held; */
    uint64_t fresh;      /* and its bytes that were not known to be free */
    uint64_t bytes;
    uint64_t worst;   /* the most by which it may grow */
    uint64_t charged; /* for that, and for the room that others rely on */
    int begun;
    int asking;
    int alone;        /* no other claim or trim was in progress since it was covered */
    unsigned version; /* of the growth then */
    int relying;
    int captured; /* by a stream: it takes nothing now */
};

/* All that grow in this process; NULL in most programs. */
extern struct pool_charge *pool_charges;

/* Others may open the held memory from now on; the entry of *link*, which has no bytes yet, gets
 * its size. 0 if they may already, by another link. */
int pool_charge_export(struct pool_charge *growth, uint16_t link);

/* The export ends: nothing is held any more, and nothing will be. */
void pool_charge_end_export(struct pool_charge *growth);

/* Settle and trim *growth* with all others from now on. */
void pool_charge_register(struct pool_charge *growth);

/* Cover a claim before the driver call: by a charge, or else by room that is charged already, or by
 * a charge after trimming. Never waits for *stream* (NULL: there is none) or for the device: the
 * thread that would let the stream go on may be the caller. */
CUresult pool_charge_reserve(struct claim *claim, const struct stream *stream);

/* Cover the claim without a charge if there is certainly room: 0 or -1. */
int pool_charge_rely(struct claim *claim);

/* Settle after the driver call, or if there was none. -ENOMEM (as from the ledger) if the driver
 * took more than was charged, and the difference does not fit either. */
int pool_charge_settle(struct claim *claim);

/* Move the claim, with its charge, to the growth that it turned out to belong to. */
void pool_charge_move(struct claim *claim, struct pool_charge *growth);

/* Around a call that makes the driver release memory: no claim begins to rely on room between them,
 * and claims that do are waited for, for up to a millisecond. The second returns whether *growth*
 * may have shrunk, even if it grew for another claim at the same time. */
struct pool_charge_trim {
    uint64_t held;
    unsigned version;
    int alone;
};
void pool_charge_begin_trim(struct pool_charge *growth, struct pool_charge_trim *trim);
int pool_charge_end_trim(struct pool_charge *growth, const struct pool_charge_trim *trim);

/* Keep *growth* in use while the caller queries the driver about it. */
void pool_charge_hold(struct pool_charge *growth);
void pool_charge_let_go(struct pool_charge *growth);

void pool_charge_reread_one(struct pool_charge *growth);
void pool_charge_reread_all(int device);

/* Settle everything on *device*, or on all with -1, to its present size. */
static inline void pool_charge_reread(int device)
{
    if (unlikely(__atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE) != NULL))
        pool_charge_reread_all(device);
}

/* Trim all unused memory on *device*; 0 if nothing grows. */
int pool_charge_make_room(unsigned device);

/* Settle everything on its device. */
void pool_charge_context_ended(const struct context *context);

void pool_charge_after_fork(void);

#endif
