/* SPDX-License-Identifier: Apache-2.0 */
/* pool_ranges.c -- free ranges of pools, and the streams in which they were freed; see
 * pool_ranges.h.
 *
 * A stream in which blocks were freed is a lane, and its frees are numbered. If several streams use
 * pools and the quota is short, an event is recorded behind frees, for requests of other streams.
 *
 * In doubt, ranges are forgotten: after anything shrank, and after unexpected growth. The rules fit
 * two kinds of drivers exactly: one that places a block in a range, which its address shows; and
 * one that moves free memory together, for which only the sum counts.
 */
#include "shim/cuda/memory/pool_ranges.h"
#include "shim/cuda/memory/charge.h"
#include "core/spin.h"

#include <stddef.h>
#include <stdlib.h>

#define CANDIDATES 4 /* most lanes whose event is queried for a request */

struct lane {
    struct extents_lane extents; /* first */
    struct lane *next;
    uint64_t key;      /* key_of(); 0: the stream was destroyed */
    uint64_t freed;    /* the number of the last free */
    uint64_t marked;   /* the number of the free that the event was recorded behind */
    CUevent event;     /* NULL: none yet */
    CUcontext context; /* of the event */
    unsigned users;    /* of the event */
    int marking;
};

static struct extents extents;
static struct lane *lanes; /* records live as long as the process */
static int locked;         /* for all of this file; never held during a call */
static int following;      /* blocks of at least one pool */

int pool_ranges_streams;
uintptr_t pool_ranges_first;

static struct pool *pool_of(struct extents_owner *owner)
{
    return (struct pool *) ((char *) owner - offsetof(struct pool, extents));
}

/* A stream's unique key; never reused while it matters, and never 0. */
static uint64_t key_of(const struct stream *stream)
{
    static uint64_t threads;
    static __thread uint64_t thread;
    CUcontext context = NULL;
    uint64_t number = 0;

    if (likely(stream_is_object(stream->handle)))
        return (uint64_t) (uintptr_t) stream->handle;
    driver.cuCtxGetCurrent(&context);
    if (stream->handle == CU_STREAM_PER_THREAD || (stream->per_thread && !stream->handle)) {
        if (!thread)
            thread = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
        number = thread;
    }
    /* Odd, as no handle is. */
    return ((uint64_t) (uintptr_t) context ^ number * UINT64_C(0x9e3779b97f4a7c15)) << 1 | 1;
}

/* --- lanes ------------------------------------------------------------------------------------ */

/* Lock held. NULL if nothing was freed in it. */
static struct lane *find_lane(uint64_t key)
{
    struct lane *lane = lanes;

    while (lane && lane->key != key)
        lane = lane->next;
    return lane;
}

/* Lock held. NULL if allocation fails. */
static struct lane *lane_of(uint64_t key)
{
    struct lane *lane = find_lane(key);

    if (likely(lane != NULL))
        return lane;
    lane = lanes;
    while (lane && (lane->key || lane->extents.extents || lane->users || lane->marking))
        lane = lane->next;
    if (!lane) {
        lane = calloc(1, sizeof(*lane));
        if (!lane)
            return NULL;
        lane->next = lanes;
        lanes = lane;
    }
    lane->key = key;
    lane->extents.done = lane->marked = lane->freed;
    return lane;
}

/* The lane's event, created in the stream's context, which is current. */
static CUevent event_in(struct lane *lane, CUcontext context)
{
    CUevent old = lane->context == context ? NULL : lane->event;

    if (lane->event && !old)
        return lane->event;
    if (old)
        driver.cuEventDestroy_v2(old);
    lane->event = NULL;
    lane->context = context;
    if (driver.cuEventCreate(&lane->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        lane->event = NULL;
    return lane->event;
}

static CUresult record(struct lane *lane, const struct stream *stream)
{
    int named = stream_is_object(stream->handle);
    CUcontext context;
    CUresult result =
        named ? driver.cuStreamGetCtx(stream->handle, &context) : driver.cuCtxGetCurrent(&context);

    context = result == CUDA_SUCCESS ? context_to_push(context) : NULL;
    if (result == CUDA_SUCCESS && named)
        result = driver.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = event_in(lane, context)
                 ? STREAM_CALL(stream, cuEventRecord)(lane->event, stream->handle)
                 : CUDA_ERROR_OUT_OF_MEMORY;
    if (named)
        driver.cuCtxPopCurrent_v2(&context);
    return result;
}

/* Record the lane's event behind its frees so far; not while it is in use, or being recorded. */
static void mark(struct lane *lane, const struct stream *stream)
{
    uint64_t freed;
    CUresult result;

    spin_lock(&locked, LOCK_POOL_RANGES);
    freed = lane->freed;
    if (lane->marking || lane->users) {
        spin_unlock(&locked, LOCK_POOL_RANGES);
        return;
    }
    lane->marking = 1;
    spin_unlock(&locked, LOCK_POOL_RANGES);
    result = record(lane, stream);
    spin_lock(&locked, LOCK_POOL_RANGES);
    lane->marking = 0;
    if (result == CUDA_SUCCESS)
        lane->marked = freed;
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

void pool_ranges_end_stream(CUstream stream)
{
    struct lane *lane;

    if (likely(!__atomic_load_n(&lanes, __ATOMIC_ACQUIRE)) || !stream_is_object(stream))
        return;
    spin_lock(&locked, LOCK_POOL_RANGES);
    lane = find_lane((uint64_t) (uintptr_t) stream);
    if (lane)
        lane->key = 0;
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

void pool_ranges_context_ended(const struct context *context)
{
    spin_lock(&locked, LOCK_POOL_RANGES);
    for (struct lane *lane = lanes; lane; lane = lane->next)
        if (lane->context == context->handle) {
            lane->event = NULL;
            lane->context = NULL;
            lane->marked = 0;
            lane->extents.done = lane->freed; /* all of its work has ended */
        }
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

/* --- room ------------------------------------------------------------------------------------- */

/* Whether the rest of the quota is less than what the pool holds. */
static int is_short(const struct pool *pool, uint64_t held)
{
    unsigned device = pool->growth.device;

    return ledger_used(&shim.ledger, device) + held >
           __atomic_load_n(&shim.ledger.limit[device], __ATOMIC_RELAXED);
}

static void follow(struct pool *pool)
{
    __atomic_store_n(&following, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&pool->followed, 1, __ATOMIC_RELEASE);
}

static struct extent *next_free(const struct pool *pool, const struct extent *extent,
                                const struct claim *claim)
{
    return extents_next_free(&pool->extents, extent, claim->bytes, charge_size(claim->bytes));
}

/* Whether a range is free for the stream with *key* now. Lock held. */
static int has_free(const struct pool *pool, const struct claim *claim, uint64_t key)
{
    const struct lane *lane = find_lane(key);
    const struct extents_lane *mine = lane ? &lane->extents : NULL;
    const struct extent *extent = next_free(pool, NULL, claim);

    while (extent && !extents_is_done(extent) && extent->lane != mine)
        extent = next_free(pool, extent, claim);
    return extent != NULL;
}

/* Find lanes with a range for the claim and an event behind its free, and count a user of each.
 * Lock held. */
static unsigned find_marked(const struct pool *pool, const struct claim *claim, struct lane **found)
{
    const struct extent *extent = next_free(pool, NULL, claim);
    unsigned count = 0;

    for (; extent && count < CANDIDATES; extent = next_free(pool, extent, claim)) {
        struct lane *lane = (struct lane *) extent->lane;
        unsigned i = 0;

        while (i < count && found[i] != lane)
            i++;
        if (i < count || !lane->event || lane->marking || extent->order > lane->marked)
            continue;
        lane->users++;
        found[count++] = lane;
    }
    return count;
}

static int allows(CUmemoryPool handle, CUmemPool_attribute name)
{
    int allowed = 0;

    return driver.cuMemPoolGetAttribute(handle, name, &allowed) == CUDA_SUCCESS && allowed;
}

/* 1 if the lane has passed its event, or the stream waits for it: where the pool's attributes allow
 * such reuse. */
static int open_lane(struct lane *lane, CUmemoryPool handle, const struct stream *stream, int wait)
{
    uint64_t marked = lane->marked;

    if (wait)
        return STREAM_CALL(stream, cuStreamWaitEvent)(stream->handle, lane->event, 0) ==
               CUDA_SUCCESS;
    if (!allows(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) ||
        driver.cuEventQuery(lane->event) != CUDA_SUCCESS)
        return 0;
    spin_lock(&locked, LOCK_POOL_RANGES);
    if (lane->extents.done < marked)
        lane->extents.done = marked;
    spin_unlock(&locked, LOCK_POOL_RANGES);
    return 1;
}

static int open_one(struct lane **found, unsigned count, CUmemoryPool handle,
                    const struct stream *stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int opened = 0;

    /* Captures in other streams must not be disturbed, whenever they begin. */
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    for (unsigned i = 0; i < count && !opened; i++)
        opened = open_lane(found[i], handle, stream, 0);
    if (count && !opened && allows(handle, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES) &&
        allows(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES))
        opened = open_lane(found[0], handle, stream, 1);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return opened;
}

int pool_ranges_has(struct pool *pool, CUmemoryPool handle, const struct claim *claim)
{
    uint64_t key = key_of(claim->subject);
    struct lane *found[CANDIDATES];
    unsigned count = 0;
    int has;

    follow(pool);
    spin_lock(&locked, LOCK_POOL_RANGES);
    has = has_free(pool, claim, key);
    if (!has)
        count = find_marked(pool, claim, found);
    spin_unlock(&locked, LOCK_POOL_RANGES);
    if (!count)
        return has;
    has = open_one(found, count, handle, claim->subject);
    spin_lock(&locked, LOCK_POOL_RANGES);
    for (unsigned i = 0; i < count; i++)
        found[i]->users--;
    spin_unlock(&locked, LOCK_POOL_RANGES);
    return has;
}

/* --- blocks ----------------------------------------------------------------------------------- */

void pool_ranges_use(struct pool *pool, struct claim *claim, CUdeviceptr address)
{
    uint64_t most;

    claim->address = address;
    if (likely(!__atomic_load_n(&pool->followed, __ATOMIC_ACQUIRE)))
        return;
    most = charge_size(claim->bytes);
    spin_lock(&locked, LOCK_POOL_RANGES);
    if (!extents_use(&extents, &pool->extents, address, claim->bytes, most))
        claim->fresh = most;
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

/* Remove free ranges that the driver has used. It can reuse a block before the free of the block
 * has returned: that is owed. Lock held. */
static void shave(struct pool *pool, uint64_t bytes, uint64_t most)
{
    pool->owed += extents_shave(&extents, &pool->extents, bytes, most);
    if (pool->owed > pool->leaving)
        pool->owed = pool->leaving;
}

/* Forget all free ranges. The memory that shrank may belong to blocks whose free has not returned,
 * so all of those are owed. Lock held. */
static void forget(struct pool *pool)
{
    extents_forget(&extents, &pool->extents);
    pool->owed = pool->leaving;
}

/* The free of a block has returned: deduct what is owed. Lock held. */
static void pay(struct pool *pool, uint64_t bytes)
{
    pool->leaving -= bytes;
    if (pool->owed)
        pool->owed = extents_shave(&extents, &pool->extents, pool->owed, pool->owed);
    if (pool->owed > pool->leaving)
        pool->owed = pool->leaving;
}

void pool_ranges_note_held(struct pool_charge *growth, const struct claim *claim, int64_t more)
{
    struct pool *pool = (struct pool *) growth;
    struct extent rest = {.owner = &pool->extents, .lane = &extents_any};
    const struct extent *block;

    if (more > 0)
        __atomic_store_n(&pool->grew, 1, __ATOMIC_RELAXED);
    spin_lock(&locked, LOCK_POOL_RANGES);
    /* It shrank; or it grew although a range was known to be free, so that knowledge is wrong. */
    if (more < 0 || (more && claim->relying)) {
        forget(pool);
    } else if (claim->fresh && (uint64_t) more >= claim->fresh) {
        rest.start = claim->address + claim->fresh; /* the rest of the chunk taken for it */
        rest.bytes = (uint64_t) more - claim->fresh;
        block = extents_find(&extents, claim->address);
        rest.region = block ? block->region : 0;
        if (claim->alone && block && rest.bytes && rest.bytes < POOL_CHUNK)
            extents_put(&extents, &rest);
    } else if (claim->fresh) { /* the driver seems to have moved free ranges together */
        shave(pool, claim->bytes, claim->fresh - (uint64_t) more);
    }
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

void pool_ranges_read(struct pool *pool)
{
    __atomic_store_n(&pool->grew, 0, __ATOMIC_RELAXED);
    if (!pool->followed && is_short(pool, pool->growth.held))
        follow(pool);
}

void pool_ranges_forget(struct pool *pool)
{
    spin_lock(&locked, LOCK_POOL_RANGES);
    forget(pool);
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

/* Look up a block that was allocated before its pool was followed: the driver knows its size. */
static struct pool_ranges_block ask_block(CUdeviceptr address)
{
    struct pool_ranges_block block = {.pool = NULL};
    CUmemoryPool handle = NULL;
    CUdeviceptr start = 0;
    struct pool *pool;
    size_t bytes = 0;

    if (!address ||
        driver.cuPointerGetAttribute(&handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) !=
            CUDA_SUCCESS ||
        !handle || driver.cuMemGetAddressRange_v2(&start, &bytes, address) != CUDA_SUCCESS ||
        start != address)
        return block;
    pool = pool_find(handle);
    if (!pool || !__atomic_load_n(&pool->followed, __ATOMIC_ACQUIRE))
        return block;
    block = (struct pool_ranges_block) {pool, address, bytes, 0};
    spin_lock(&locked, LOCK_POOL_RANGES);
    block.region = ++extents.regions;
    pool->leaving += bytes;
    spin_unlock(&locked, LOCK_POOL_RANGES);
    return block;
}

struct pool_ranges_block pool_ranges_take(CUdeviceptr address)
{
    struct pool_ranges_block block = {.pool = NULL};
    struct extent taken;
    int known;

    if (likely(!__atomic_load_n(&following, __ATOMIC_ACQUIRE)))
        return block;
    spin_lock(&locked, LOCK_POOL_RANGES);
    known = extents_take(&extents, address, &taken);
    if (known)
        pool_of(taken.owner)->leaving += taken.bytes;
    spin_unlock(&locked, LOCK_POOL_RANGES);
    if (unlikely(!known))
        return ask_block(address);
    return (struct pool_ranges_block) {pool_of(taken.owner), address, taken.bytes, taken.region};
}

void pool_ranges_put(const struct pool_ranges_block *block, const struct stream *stream)
{
    struct pool *pool = block->pool;
    struct extent freed = {.start = block->address,
                           .bytes = block->bytes,
                           .region = block->region,
                           .block = block->address,
                           .block_bytes = block->bytes,
                           .block_end = block->address + charge_size(block->bytes),
                           .padding = charge_size(block->bytes) - block->bytes,
                           .lane = &extents_any};
    struct lane *lane = NULL;
    uint64_t key;

    if (likely(!pool))
        return;
    key = stream ? key_of(stream) : 0;
    freed.owner = &pool->extents;
    spin_lock(&locked, LOCK_POOL_RANGES);
    if (stream) {
        lane = lane_of(key);
        freed.lane = lane ? &lane->extents : NULL;
        freed.order = lane ? ++lane->freed : 0;
    }
    if (freed.lane)
        extents_put(&extents, &freed);
    pay(pool, block->bytes);
    spin_unlock(&locked, LOCK_POOL_RANGES);
    if (unlikely(__atomic_load_n(&pool_ranges_streams, __ATOMIC_RELAXED)) && lane &&
        is_short(pool, pool->growth.held))
        mark(lane, stream);
}

void pool_ranges_restore(const struct pool_ranges_block *block)
{
    if (!block->pool)
        return;
    spin_lock(&locked, LOCK_POOL_RANGES);
    extents_use(&extents, &block->pool->extents, block->address, block->bytes, block->bytes);
    pay(block->pool, block->bytes);
    spin_unlock(&locked, LOCK_POOL_RANGES);
}

CUresult pool_ranges_free(CUdeviceptr address)
{
    struct pool_ranges_block block = pool_ranges_take(address);
    CUresult result = driver.cuMemFree_v2(address);

    if (result != CUDA_SUCCESS) {
        pool_ranges_restore(&block);
    } else if (address && __atomic_load_n(&pool_charges, __ATOMIC_ACQUIRE)) {
        pool_note_free();
        pool_ranges_put(&block, NULL);
        pool_charge_reread_all(-1);
    }
    return result;
}

void pool_ranges_after_fork(void)
{
    locked = following = 0;
    pool_ranges_streams = 0;
    pool_ranges_first = 0;
    lanes = NULL;
    extents_after_fork(&extents);
}
