/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c -- hooks that create, select, trim and destroy memory pools, and their registry.
 *
 * A pool that is destroyed while blocks of it are in use lives on in the driver until the last one
 * is freed, and its size can no longer be queried. So a pool is destroyed in the driver only when
 * it is empty; until then its handle is kept here, and hooks answer as if it were destroyed.
 */
#include "shim/cuda/memory/pool.h"
#include "shim/cuda/memory/pool_ranges.h"
#include "shim/cuda/memory/pool_share.h"
#include "core/mutex.h"
#include "core/spin.h"

#include <pthread.h>
#include <stdlib.h>

#define SMALL_CHUNK (UINT64_C(2) << 20) /* the driver's smallest chunk, used if it is short */

static struct pool *pools; /* only ever grows at the head; read without a lock */
static struct pool *current[REGION_DEVICES];
static unsigned changes; /* of the current pools */
static long freed;       /* failed claims and freed blocks; may be too low */
static long unasked;     /* blocks created without a claim */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

static CUmemoryPool handle_of(const struct pool *pool)
{
    return __atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE);
}

/* 0 if the driver does not say. A destroyed pool holds nothing. */
static int read_attribute(const struct pool_charge *growth, CUmemPool_attribute name,
                          uint64_t *value)
{
    CUmemoryPool handle = handle_of((const struct pool *) growth);
    CUresult result;

    *value = 0;
    result = handle ? driver.cuMemPoolGetAttribute(handle, name, value) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
           result == CUDA_ERROR_INVALID_HANDLE;
}

static int read_held(const struct pool_charge *growth, uint64_t *held)
{
    return read_attribute(growth, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, held);
}

/* The most blocks that all pools can have: every claim became one, or is about to. */
static uint64_t count_blocks(void)
{
    const struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE);
    int64_t count = __atomic_load_n(&unasked, __ATOMIC_RELAXED);

    for (; pool; pool = pool->next)
        count += (int64_t) __atomic_load_n(&pool->growth.claims, __ATOMIC_RELAXED);
    count -= __atomic_load_n(&freed, __ATOMIC_RELAXED);
    return count > 0 ? (uint64_t) count : 0;
}

/* Blocks and the ends of chunks divide the unused memory into at most *pieces* pieces, however the
 * driver placed them. So the largest has at least their average size, and such a request fits. */
static int fits_average(const struct pool_charge *growth, uint64_t held, uint64_t bytes)
{
    uint64_t pieces = held / (held % POOL_CHUNK ? SMALL_CHUNK : POOL_CHUNK) + count_blocks();
    uint64_t used;

    return read_attribute(growth, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) && held > used &&
           pieces && (held - used) / pieces >= bytes + 511;
}

/* If the held memory has shrunk since the last query, what is known is outdated. The average proves
 * nothing if some of the memory waits for other streams. */
static int has_room(const struct pool_charge *growth, const struct claim *claim)
{
    struct pool *pool = (struct pool *) growth;
    uint64_t held;

    return read_held(growth, &held) && held >= growth->held &&
           (pool_ranges_has(pool, handle_of(pool), claim) ||
            (!pool_ranges_streams && fits_average(growth, held, claim->bytes)));
}

/* Destroy a pool in the driver that the program has destroyed, once it is empty and no other thread
 * uses it. */
static void bury(struct pool *pool)
{
    CUmemoryPool handle = NULL;
    uint64_t held;

    if (!__atomic_load_n(&pool->destroyed, __ATOMIC_ACQUIRE) || !read_held(&pool->growth, &held) ||
        held)
        return;
    spin_lock(&pool->growth.locked, LOCK_POOL);
    if (pool->destroyed && pool->growth.users == 1) { /* the one is the caller */
        handle = pool->handle;
        pool->handle = NULL;
        pool->created = 0;
        pool->destroyed = 0;
    }
    spin_unlock(&pool->growth.locked, LOCK_POOL);
    if (!handle)
        return;
    pool_charge_end_export(&pool->growth);
    driver.cuMemPoolDestroy(handle);
}

static CUresult trim_to(struct pool *pool, CUmemoryPool handle, uint64_t bytes)
{
    struct pool_charge_trim trim;
    CUresult result;

    pool_charge_begin_trim(&pool->growth, &trim);
    result = driver.cuMemPoolTrimTo(handle, bytes);
    if (pool_charge_end_trim(&pool->growth, &trim))
        pool_ranges_forget(pool);
    return result;
}

static void trim(struct pool_charge *growth, uint64_t bytes)
{
    struct pool *pool = (struct pool *) growth;
    CUmemoryPool handle;
    uint64_t held = 0;

    pool_charge_hold(growth);
    handle = handle_of(pool);
    if (handle && bytes != UINT64_MAX)
        read_held(growth, &held);
    if (handle) {
        trim_to(pool, handle, held > bytes ? held - bytes : 0);
        bury(pool);
    }
    pool_charge_let_go(growth);
}

static const struct pool_charge_source pool_source = {read_held, has_room, trim,
                                                      pool_ranges_note_held};

/* Lock held. */
static struct pool *unused_record(void)
{
    struct pool *pool = pools;

    while (pool && (pool->handle || pool->growth.settled || pool->growth.users))
        pool = pool->next;
    return pool;
}

static struct pool *search(CUmemoryPool handle)
{
    struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE);

    while (pool && handle_of(pool) != handle)
        pool = pool->next;
    return pool;
}

/* Find or create the record of *handle*; NULL if allocation fails. */
static struct pool *keep(CUmemoryPool handle, unsigned device)
{
    struct pool *pool;

    mutex_lock(&registry_lock, LOCK_POOLS);
    pool = search(handle);
    if (!pool && (pool = unused_record())) {
        pool->growth.device = device;
        pool->growth.held = 0;
        pool->followed = 0;
        __atomic_store_n(&pool->handle, handle, __ATOMIC_RELEASE);
    } else if (!pool && (pool = calloc(1, sizeof(*pool)))) {
        pool->growth.source = &pool_source;
        pool->growth.device = device;
        pool->handle = handle;
        pool->next = pools;
        __atomic_store_n(&pools, pool, __ATOMIC_RELEASE);
        pool_charge_register(&pool->growth);
    }
    mutex_unlock(&registry_lock, LOCK_POOLS);
    return pool;
}

/* A pool whose creation was not seen is a device's default pool, or holds no memory of ours. */
static struct pool *find_default(CUmemoryPool handle)
{
    for (CUdevice ordinal = 0; ordinal < SHIM_ORDINALS && shim_device(ordinal) >= 0; ordinal++) {
        CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
        CUmemoryPool pinned = NULL;
        CUmemoryPool managed = NULL;

        driver.cuDeviceGetDefaultMemPool(&pinned, ordinal);
        driver.cuMemGetDefaultMemPool(&managed, &location, CU_MEM_ALLOCATION_TYPE_MANAGED);
        if (handle == pinned || handle == managed)
            return keep(handle, (unsigned) shim_device(ordinal));
    }
    return NULL;
}

struct pool *pool_find(CUmemoryPool handle)
{
    struct pool *pool = handle ? search(handle) : NULL;

    return pool || !handle ? pool : find_default(handle);
}

int pool_is_destroyed(CUmemoryPool handle)
{
    const struct pool *pool = handle ? search(handle) : NULL;

    return pool && __atomic_load_n(&pool->destroyed, __ATOMIC_ACQUIRE);
}

unsigned pool_changes(void)
{
    return __atomic_load_n(&changes, __ATOMIC_SEQ_CST);
}

static struct pool *ask_current(unsigned device, CUresult *error)
{
    unsigned before = pool_changes();
    struct pool *pool;
    CUmemoryPool handle;

    *error = driver.cuDeviceGetMemPool(&handle, shim_ordinal((int) device));
    if (*error != CUDA_SUCCESS)
        return NULL;
    pool = keep(handle, device);
    if (!pool)
        *error = CUDA_ERROR_OUT_OF_MEMORY;
    mutex_lock(&registry_lock, LOCK_POOLS);
    if (before == pool_changes())
        __atomic_store_n(&current[device], pool, __ATOMIC_RELEASE);
    mutex_unlock(&registry_lock, LOCK_POOLS);
    return pool;
}

struct pool *pool_current(unsigned device, CUresult *error)
{
    struct pool *pool = __atomic_load_n(&current[device], __ATOMIC_ACQUIRE);

    return likely(pool != NULL) ? pool : ask_current(device, error);
}

static void forget_current(void)
{
    mutex_lock(&registry_lock, LOCK_POOLS);
    __atomic_add_fetch(&changes, 1, __ATOMIC_SEQ_CST);
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        __atomic_store_n(&current[device], NULL, __ATOMIC_RELEASE);
    mutex_unlock(&registry_lock, LOCK_POOLS);
}

void pool_find_claim(struct claim *claim, unsigned before)
{
    CUresult error = CUDA_SUCCESS;
    struct pool *now;
    uint64_t held;

    if (likely(before == pool_changes()))
        return;
    now = pool_current(claim->growth->device, &error);
    if (now && &now->growth != claim->growth && read_held(claim->growth, &held) &&
        held <= __atomic_load_n(&claim->growth->settled, __ATOMIC_RELAXED))
        pool_charge_move(claim, &now->growth);
}

void pool_note_blocks(int more)
{
    __atomic_add_fetch(&unasked, more, __ATOMIC_RELAXED);
}

void pool_note_free(void)
{
    /* Two threads at once may count only once: then the number of blocks is overestimated. */
    __atomic_store_n(&freed, __atomic_load_n(&freed, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

void pool_after_fork(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    pools = NULL;
    freed = unasked = 0;
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        current[device] = NULL;
}

/* Managed memory without a location is charged to the same device as by cuMemAllocManaged. */
int pool_device(const CUmemPoolProps *props)
{
    CUdevice ordinal = 0;

    switch ((int) props->location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return -1;
    case CU_MEM_LOCATION_TYPE_NONE:
        if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
            ordinal = 0;
        return shim_device(ordinal);
    default:
        return shim_device(props->location.id);
    }
}

/* --- hooks ------------------------------------------------------------------------------------ */

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
    struct pool *pool;
    CUresult result;
    int device;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    result = driver.cuMemPoolCreate(handle, props);
    if (result != CUDA_SUCCESS)
        return result;
    device = pool_device(props);
    if (device < 0)
        return CUDA_SUCCESS;
    pool = keep(*handle, (unsigned) device);
    if (!pool) {
        driver.cuMemPoolDestroy(*handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->created = 1;
    return CUDA_SUCCESS;
}

/* Like the driver: the device goes back to its default pool. */
static void leave_current(const struct pool *pool)
{
    CUdevice ordinal = shim_ordinal((int) pool->growth.device);
    CUmemoryPool handle = NULL;

    if (driver.cuDeviceGetMemPool(&handle, ordinal) != CUDA_SUCCESS || handle != pool->handle)
        return;
    forget_current();
    if (driver.cuDeviceGetDefaultMemPool(&handle, ordinal) == CUDA_SUCCESS)
        driver.cuDeviceSetMemPool(ordinal, handle);
    forget_current();
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    cuuint64_t nothing = 0;
    struct pool *pool;

    if (!shim.open)
        return CUDA_ERROR_NOT_INITIALIZED;
    pool = handle ? search(handle) : NULL;
    if (!pool || !pool->created)
        return pool_share_destroy(handle);
    if (__atomic_exchange_n(&pool->destroyed, 1, __ATOMIC_ACQ_REL))
        return CUDA_ERROR_INVALID_VALUE;
    leave_current(pool);
    driver.cuMemPoolSetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    trim(&pool->growth, UINT64_MAX);
    pool_charge_reread_one(&pool->growth);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t bytes)
{
    CUresult result = pool_may_ask(handle);
    struct pool *pool;

    if (result != CUDA_SUCCESS)
        return result;
    pool = handle ? search(handle) : NULL;
    if (!pool)
        return driver.cuMemPoolTrimTo(handle, bytes);
    result = trim_to(pool, handle, bytes);
    pool_charge_reread_one(&pool->growth);
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
    CUresult result = pool_may_ask(handle);

    if (result != CUDA_SUCCESS)
        return result;
    forget_current();
    result = driver.cuDeviceSetMemPool(ordinal, handle);
    forget_current();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle)
{
    CUresult result = pool_may_ask(handle);

    if (result != CUDA_SUCCESS)
        return result;
    forget_current();
    result = driver.cuMemSetMemPool(location, type, handle);
    forget_current();
    return result;
}
