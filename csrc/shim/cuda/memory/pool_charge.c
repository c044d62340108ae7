/* SPDX-License-Identifier: Apache-2.0 */
/* pool_charge.c -- settles charges to the memory held inside the driver; see pool_charge.h.
 *
 * No lock is held during a driver query, so an answer may be outdated when it is used. That matters
 * only if another thread has settled meanwhile: then the query is repeated. Growth by a claim that
 * is still in the driver is covered by that claim.
 */
#include "shim/cuda/memory/pool_charge.h"
#include "shim/cuda/work/capture.h"
#include "shim/cuda/memory/charge.h"
#include "core/shared_memory.h"
#include "core/spin.h"

#include <errno.h>
#include <stddef.h>

#define READS      16 /* queries before giving up, if others keep settling meanwhile */
#define TIMEOUT_NS UINT64_C(1000000)

struct pool_charge *pool_charges;

void pool_charge_register(struct pool_charge *growth)
{
    growth->next = __atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&pool_charges, &growth->next, growth, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
        ;
}

/* Lock held. */
static void begin(struct claim *claim)
{
    if (claim->begun)
        return;
    claim->begun = 1;
    claim->growth->users++;
    __atomic_store_n(&claim->growth->claims, claim->growth->claims + 1, __ATOMIC_RELAXED);
}

/* Lock held, also in the next function. */
static void ask(struct claim *claim)
{
    claim->asking = 1;
    claim->alone = !claim->growth->asking && !claim->growth->trims;
    claim->version = claim->growth->version;
    __atomic_store_n(&claim->growth->asking, claim->growth->asking + 1, __ATOMIC_RELAXED);
}

static void ask_no_more(struct claim *claim)
{
    if (claim->asking)
        __atomic_store_n(&claim->growth->asking, claim->growth->asking - 1, __ATOMIC_RELAXED);
    claim->asking = 0;
}

/* Enter the claim, and set its charge. Lock held. */
static void enter(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;

    begin(claim);
    ask(claim);
    /* The driver may give this claim room that others rely on, and so have to grow for them. */
    claim->charged = claim->worst + growth->relied;
    growth->pending += claim->charged;
}

/* Update the size that others may have open: all that is held, or may be in a moment. Lock held. */
static void note_size(const struct pool_charge *growth)
{
    if (unlikely(growth->link))
        shared_memory_resize(&shim.region, growth->link, growth->settled + growth->pending);
}

static OUT_OF_LINE void note_charge(struct pool_charge *growth)
{
    spin_lock(&growth->locked, LOCK_POOL);
    note_size(growth);
    spin_unlock(&growth->locked, LOCK_POOL);
}

/* The charge of the claim did not fit. */
static OUT_OF_LINE int leave(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;

    spin_lock(&growth->locked, LOCK_POOL);
    ask_no_more(claim);
    growth->pending -= claim->charged;
    note_size(growth);
    spin_unlock(&growth->locked, LOCK_POOL);
    claim->charged = 0;
    return -ENOMEM;
}

static int try_charge(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;

    spin_lock(&growth->locked, LOCK_POOL);
    enter(claim);
    spin_unlock(&growth->locked, LOCK_POOL);
    if (unlikely(charge_try(growth->device, claim->charged) != 0))
        return leave(claim);
    if (unlikely(__atomic_load_n(&growth->link, __ATOMIC_ACQUIRE)))
        note_charge(growth);
    return 0;
}

/* Mark the claim as relying if it is the only one: others could take the room first. */
static int mark_relying(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;

    spin_lock(&growth->locked, LOCK_POOL);
    begin(claim);
    if (!growth->asking && !growth->trims) {
        ask(claim);
        claim->relying = 1;
        growth->relied += claim->worst;
    }
    spin_unlock(&growth->locked, LOCK_POOL);
    return claim->relying;
}

static void unmark_relying(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;

    spin_lock(&growth->locked, LOCK_POOL);
    ask_no_more(claim);
    claim->relying = 0;
    growth->relied -= claim->worst;
    spin_unlock(&growth->locked, LOCK_POOL);
}

int pool_charge_rely(struct claim *claim)
{
    if (!mark_relying(claim))
        return -1;
    if (claim->growth->source->has_room(claim->growth, claim))
        return 0;
    unmark_relying(claim);
    return -1;
}

/* Like pool_charge_rely(), for a claim that would have to trim: others do not stay in the driver
 * for long. */
static int rely_patiently(struct claim *claim)
{
    uint64_t deadline = clock_now_ns(CLOCK_MONOTONIC) + TIMEOUT_NS;

    while (__atomic_load_n(&claim->growth->asking, __ATOMIC_RELAXED) &&
           clock_now_ns(CLOCK_MONOTONIC) < deadline)
        spin_nap();
    return pool_charge_rely(claim);
}

/* Remove the claim and adjust the charge to *held*; *missing* is what is held beyond the charge.
 * -EAGAIN if another thread has settled since *version*. */
static int apply(struct claim *claim, unsigned version, const uint64_t *held, uint64_t *missing)
{
    struct pool_charge *growth = claim->growth;
    unsigned device = growth->device; /* without users, growth may be reused before the refund */
    uint64_t covered;
    uint64_t kept;
    int64_t more;

    spin_lock(&growth->locked, LOCK_POOL);
    if (unlikely(held && growth->version != version)) {
        spin_unlock(&growth->locked, LOCK_POOL);
        return -EAGAIN;
    }
    claim->alone &= growth->version == claim->version && growth->asking == 1 && !growth->trims;
    growth->version++;
    more = held ? (int64_t) (*held - growth->held) : 0;
    if ((more || claim->fresh) && growth->source->note_held)
        growth->source->note_held(growth, claim, more);
    if (held)
        growth->held = *held;
    growth->users -= claim->begun ? 1 : 0;
    ask_no_more(claim);
    growth->pending -= claim->charged;
    growth->relied -= claim->relying ? claim->worst : 0;
    covered = growth->settled + claim->charged;
    kept = held && *held < covered && !growth->relied ? *held : covered;
    *missing = held && *held > covered && !growth->pending ? *held - covered : 0;
    growth->settled = kept;
    note_size(growth);
    spin_unlock(&growth->locked, LOCK_POOL);
    if (likely(covered != kept))
        ledger_refund(&shim.ledger, device, covered - kept);
    *claim = (struct claim) {.growth = growth};
    return 0;
}

/* Settle once; returns the bytes held beyond the charge. */
static uint64_t settle_to_held(struct claim *claim)
{
    struct pool_charge *growth = claim->growth;
    uint64_t missing = 0;

    for (int i = 0; i < READS; i++) {
        unsigned version = __atomic_load_n(&growth->version, __ATOMIC_ACQUIRE);
        uint64_t held;

        if (!growth->source->read_held(growth, &held))
            break;
        if (likely(apply(claim, version, &held, &missing) == 0))
            return missing;
    }
    apply(claim, 0, NULL, &missing); /* the size is unknown: the whole charge stays */
    return 0;
}

static OUT_OF_LINE int charge_missing(struct claim *claim, uint64_t missing)
{
    while (missing) {
        claim->worst = missing;
        if (try_charge(claim) != 0) {
            apply(claim, 0, NULL, &missing);
            return -ENOMEM;
        }
        missing = settle_to_held(claim);
    }
    return 0;
}

int pool_charge_settle(struct claim *claim)
{
    uint64_t missing = settle_to_held(claim);

    return likely(!missing) ? 0 : charge_missing(claim, missing);
}

void pool_charge_move(struct claim *claim, struct pool_charge *growth)
{
    struct pool_charge *from = claim->growth;

    spin_lock(&growth->locked, LOCK_POOL);
    growth->users++;
    growth->asking += (unsigned) claim->asking;
    growth->pending += claim->charged;
    growth->relied += claim->relying ? claim->worst : 0;
    note_size(growth);
    spin_unlock(&growth->locked, LOCK_POOL);
    spin_lock(&from->locked, LOCK_POOL);
    from->users--;
    from->asking -= (unsigned) claim->asking;
    from->pending -= claim->charged;
    from->relied -= claim->relying ? claim->worst : 0;
    note_size(from);
    spin_unlock(&from->locked, LOCK_POOL);
    claim->growth = growth;
}

int pool_charge_export(struct pool_charge *growth, uint16_t link)
{
    int done;

    spin_lock(&growth->locked, LOCK_POOL);
    done = !growth->link || growth->link == link;
    if (done)
        __atomic_store_n(&growth->link, link, __ATOMIC_RELEASE);
    else
        shared_memory_cancel_export(&shim.region, link);
    note_size(growth);
    spin_unlock(&growth->locked, LOCK_POOL);
    return done;
}

void pool_charge_end_export(struct pool_charge *growth)
{
    spin_lock(&growth->locked, LOCK_POOL);
    shared_memory_cancel_export(&shim.region, growth->link);
    growth->link = 0;
    spin_unlock(&growth->locked, LOCK_POOL);
}

void pool_charge_hold(struct pool_charge *growth)
{
    spin_lock(&growth->locked, LOCK_POOL);
    growth->users++;
    spin_unlock(&growth->locked, LOCK_POOL);
}

void pool_charge_let_go(struct pool_charge *growth)
{
    spin_lock(&growth->locked, LOCK_POOL);
    growth->users--;
    spin_unlock(&growth->locked, LOCK_POOL);
}

void pool_charge_reread_one(struct pool_charge *growth)
{
    struct claim nothing = {.growth = growth, .begun = 1};

    pool_charge_hold(growth);
    pool_charge_settle(&nothing);
}

void pool_charge_reread_all(int device)
{
    struct pool_charge *growth = __atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE);

    for (; growth; growth = growth->next)
        if (device < 0 || growth->device == (unsigned) device)
            pool_charge_reread_one(growth);
}

void pool_charge_begin_trim(struct pool_charge *growth, struct pool_charge_trim *trim)
{
    uint64_t deadline = clock_now_ns(CLOCK_MONOTONIC) + TIMEOUT_NS;

    spin_lock(&growth->locked, LOCK_POOL);
    growth->trims++;
    spin_unlock(&growth->locked, LOCK_POOL);
    while (__atomic_load_n(&growth->relied, __ATOMIC_RELAXED) &&
           clock_now_ns(CLOCK_MONOTONIC) < deadline)
        spin_nap();
    trim->alone = growth->source->read_held(growth, &trim->held);
    spin_lock(&growth->locked, LOCK_POOL);
    trim->version = growth->version;
    trim->alone &= !growth->asking;
    spin_unlock(&growth->locked, LOCK_POOL);
}

int pool_charge_end_trim(struct pool_charge *growth, const struct pool_charge_trim *trim)
{
    uint64_t held;
    int same = growth->source->read_held(growth, &held) && held >= trim->held;

    spin_lock(&growth->locked, LOCK_POOL);
    same = same && trim->alone && !growth->asking && growth->version == trim->version;
    growth->trims--;
    spin_unlock(&growth->locked, LOCK_POOL);
    return !same;
}

static void trim(struct pool_charge *growth, uint64_t bytes)
{
    growth->source->trim(growth, bytes);
    pool_charge_reread_one(growth);
}

static void trim_all(unsigned device)
{
    struct pool_charge *growth = __atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE);

    for (; growth; growth = growth->next)
        if (growth->device == device)
            trim(growth, UINT64_MAX);
}

int pool_charge_make_room(unsigned device)
{
    if (!__atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE))
        return 0;
    trim_all(device);
    return 1;
}

/* By how much the claim exceeds the rest of the quota. */
static uint64_t lacking(const struct claim *claim)
{
    unsigned device = claim->growth->device;
    uint64_t limit = __atomic_load_n(&shim.ledger.limit[device], __ATOMIC_RELAXED);
    uint64_t wanted = claim->worst + __atomic_load_n(&claim->growth->relied, __ATOMIC_RELAXED);
    uint64_t used = ledger_used(&shim.ledger, device);
    uint64_t left = used < limit ? limit - used : 0;

    return wanted > left ? pool_charge_chunks(wanted - left) : POOL_CHUNK;
}

/* Cover a claim whose worst case exceeds the rest of the quota, without disturbing captures in
 * other streams. In this order:
 *
 * 1. Room that is certain: nothing is charged and the size stays. The API has no request that
 *    forbids growth, so the source has to prove it (pool_ranges.h).
 * 2. A charge, after refunding what the driver has released meanwhile.
 * 3. A charge after trimming what lacks, and no more. The driver may still have a place for the
 *    request: then the charge is refunded, and the next claim of that size can be charged without a
 *    trim. Memory trimmed beyond that would be taken again, in one step per request.
 * 4. A charge after trimming everything on the device.
 *
 * The charge covers the held memory at each step. No step waits for the device: trims release only
 * memory that is free already. */
static int make_room(struct claim *claim)
{
    unsigned device = claim->growth->device;

    if (rely_patiently(claim) == 0)
        return 0;
    pool_charge_reread_all((int) device);
    if (try_charge(claim) == 0 || pool_charge_rely(claim) == 0)
        return 0;
    trim(claim->growth, lacking(claim));
    if (try_charge(claim) == 0)
        return 0;
    trim_all(device);
    return try_charge(claim);
}

/* The charge did not fit. */
static OUT_OF_LINE CUresult reserve_otherwise(struct claim *claim, const struct stream *stream)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = CUDA_SUCCESS;

    if (stream)
        result = STREAM_CALL(stream, cuStreamIsCapturing)(stream->handle, &capture);
    claim->captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    if (result != CUDA_SUCCESS || claim->captured)
        return result;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    if (make_room(claim) != 0)
        result = charge_refused(claim->growth->device, claim->bytes);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}

CUresult pool_charge_reserve(struct claim *claim, const struct stream *stream)
{
    struct pool_charge *growth = claim->growth;

    /* If the rest of the quota was too small for the last claim, it usually is for the next one. */
    if (unlikely(__atomic_load_n(&growth->is_short, __ATOMIC_RELAXED)) && !capture_is_going_on() &&
        pool_charge_rely(claim) == 0)
        return CUDA_SUCCESS;
    if (likely(try_charge(claim) == 0)) {
        if (unlikely(__atomic_load_n(&growth->is_short, __ATOMIC_RELAXED)))
            __atomic_store_n(&growth->is_short, 0, __ATOMIC_RELAXED);
        return CUDA_SUCCESS;
    }
    __atomic_store_n(&growth->is_short, 1, __ATOMIC_RELAXED);
    return reserve_otherwise(claim, stream);
}

void pool_charge_context_ended(const struct context *context)
{
    pool_charge_reread((int) context->device);
}

void pool_charge_after_fork(void)
{
    pool_charges = NULL;
}
