/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c -- memory pools and stream-ordered allocation.
 *
 * A pool charges the machine for what it reserves (cuda/reserve.h). That shrinks to its threshold,
 * or to what is in use, when somebody synchronises. A block freed in a stream counts as unused from
 * the call on; its address comes free when the stream has come to the free.
 *
 * The lock here is the innermost: nothing is called with it but the machine's counting.
 */
#include <stdlib.h>

#include "cuda/capture.h"
#include "cuda/entry.h"
#include "cuda/graphmemory.h"
#include "cuda/import.h"
#include "cuda/pool.h"
#include "memory.h"

enum { POOL_MAGIC = 0x706f6f6c };

pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static struct pool *defaults[POOL_HOMES][CONFIG_DEVICES];
static struct pool *chosen[POOL_HOMES][CONFIG_DEVICES];
static _Atomic bool there_are_pools;

struct pool *pool_add(enum pool_home home, uint32_t device)
{
    struct pool *pool = pools;

    while (pool && (pool->magic || pool->reserve.used))
        pool = pool->next;
    if (!pool) {
        pool = malloc(sizeof(*pool));
        if (!pool)
            return NULL;
        pool->next = pools;
        pools = pool;
    }
    *pool = (struct pool) {
        .magic = POOL_MAGIC,
        .home = home,
        .reserve = {.device = device, .is_free_of_charge = home == POOL_ON_HOST},
        .next = pool->next,
        .reuse = {1, 1, 1},
    };
    there_are_pools = true;
    return pool;
}

static struct pool *default_pool(enum pool_home home, uint32_t device)
{
    struct pool **pool = &defaults[home][device];

    pthread_mutex_lock(&pool_lock);
    if (!*pool) {
        *pool = chosen[home][device] = pool_add(home, device);
        if (*pool)
            (*pool)->is_default = true;
    }
    pthread_mutex_unlock(&pool_lock);
    return *pool;
}

static struct pool *chosen_pool(enum pool_home home, uint32_t device)
{
    struct pool *pool = default_pool(home, device);

    pthread_mutex_lock(&pool_lock);
    if (pool)
        pool = chosen[home][device];
    pthread_mutex_unlock(&pool_lock);
    return pool;
}

struct pool *pool_find(CUmemoryPool handle)
{
    struct pool *pool = (struct pool *) handle;

    if (!pool || (uintptr_t) handle % sizeof(void *) || pool->magic != POOL_MAGIC)
        return NULL;
    return pool;
}

static void shrink_all(uint32_t device, bool wholly)
{
    if (!atomic_load_explicit(&there_are_pools, memory_order_relaxed))
        return;
    pthread_mutex_lock(&pool_lock);
    for (struct pool *pool = pools; pool; pool = pool->next)
        if (pool->reserve.device == device)
            reserve_shrink(&pool->reserve, wholly || pool->is_destroyed ? 0 : pool->threshold);
    pthread_mutex_unlock(&pool_lock);
}

void pool_trim_all(uint32_t device)
{
    shrink_all(device, false);
}

/* Lock held. */
static void note_unused(struct pool *pool, uint64_t bytes)
{
    reserve_unuse(&pool->reserve, bytes);
    if (pool->is_destroyed && !pool->reserve.used) {
        reserve_end(&pool->reserve);
        pool->magic = 0;
    }
}

void pool_forget(void *owner, uint64_t bytes)
{
    struct pool *pool = owner;

    if (!pool)
        return;
    pthread_mutex_lock(&pool_lock);
    note_unused(pool, memory_round(bytes));
    reserve_shrink(&pool->reserve, pool->is_destroyed ? 0 : pool->threshold);
    pthread_mutex_unlock(&pool_lock);
}

static bool use(struct pool *pool, uint64_t bytes)
{
    bool fits;

    pthread_mutex_lock(&pool_lock);
    fits = reserve_use(&pool->reserve, bytes);
    pthread_mutex_unlock(&pool_lock);
    return fits;
}

/* Of device memory only the process's own devices; -1 if it is none of them. */
static int ordinal_of(const struct pool *pool)
{
    for (int ordinal = 0; ordinal < process.device_count; ordinal++)
        if (process.devices[ordinal] == (int) pool->reserve.device)
            return ordinal;
    return -1;
}

static CUresult allocate(struct stream *stream, CUdeviceptr *address, size_t bytes,
                         struct pool *pool)
{
    uint64_t counted = memory_round(bytes);
    CUresult result;

    REQUIRE(address && bytes);
    if (!pool || pool->holder)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture && pool->home != POOL_ON_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (stream->capture)
        return capture_add_allocation(stream, bytes, ordinal_of(pool), address);
    if (counted > process.machine->config.devices[pool->reserve.device].memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!use(pool, counted)) {
        shrink_all(pool->reserve.device, true);
        if (!use(pool, counted))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool->home != POOL_ON_DEVICE)
        result = memory_allocate_shown(pool->reserve.device, MEMORY_POOL, bytes, address);
    else
        result = pool->reserve.device == stream->device
                     ? memory_allocate(stream->work, MEMORY_POOL, bytes, address)
                     : memory_allocate_on(pool->reserve.device, MEMORY_POOL, bytes, address);
    if (result == CUDA_SUCCESS)
        memory_set_owner(*address, pool);
    else
        pool_forget(pool, bytes);
    return result;
}

/* The block is nobody's from now on: a second free finds no owner. */
static struct pool *disown(CUdeviceptr address, uint64_t *bytes)
{
    struct memory_info info;
    struct pool *pool = memory_owner(address, MEMORY_POOL);

    if (!pool || !memory_find(address, &info))
        return NULL;
    memory_set_owner(address, NULL);
    *bytes = memory_round(info.size);
    return pool;
}

static void free_block(struct effect *effect)
{
    memory_free(effect->arguments[0], (enum memory_kind) effect->arguments[1]);
}

/* What no pool of this process has: of a graph, or of another process's pool. */
static CUresult free_foreign(struct stream *stream, CUdeviceptr address)
{
    CUresult result = graph_memory_free_address(stream, address);

    return result == CUDA_SUCCESS ? result : import_close(address, MEMORY_POOL);
}

/* Memory of cuMemAlloc may be freed on a stream too: it is there until the stream comes to it. */
static bool is_linear(CUdeviceptr address, enum memory_kind *kind)
{
    struct memory_info info;

    if (!memory_find(address, &info) || info.base != address ||
        (info.kind != MEMORY_DEVICE && info.kind != MEMORY_MANAGED))
        return false;
    *kind = info.kind;
    return true;
}

static CUresult free_in_stream(struct stream *stream, CUdeviceptr address)
{
    struct work_order order = {
        .engine = ENGINE_NONE,
        .effect = {.apply = free_block, .arguments = {address, MEMORY_POOL}},
    };
    enum memory_kind kind;
    struct pool *pool;
    uint64_t bytes;

    if (!address)
        return CUDA_SUCCESS;
    if (stream->capture)
        return capture_add_free(stream, address);
    if (is_linear(address, &kind)) {
        order.effect.arguments[1] = kind;
        return stream_submit(stream, &order, NULL);
    }
    pool = disown(address, &bytes);
    if (!pool)
        return free_foreign(stream, address);
    pthread_mutex_lock(&pool_lock);
    note_unused(pool, bytes);
    pthread_mutex_unlock(&pool_lock);
    return stream_submit(stream, &order, NULL);
}

CUresult pool_free_now(CUdeviceptr address)
{
    uint64_t bytes;
    struct pool *pool = disown(address, &bytes);

    if (!pool)
        return free_foreign(NULL, address);
    memory_free(address, MEMORY_POOL);
    pool_forget(pool, bytes);
    return CUDA_SUCCESS;
}

STREAM_CALL(cuMemAllocAsync, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
            allocate(stream, dptr, bytesize, chosen_pool(POOL_ON_DEVICE, stream->device)))
STREAM_CALL(cuMemAllocFromPoolAsync,
            (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
            allocate(stream, dptr, bytesize, pool_find(pool)))
STREAM_CALL(cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), free_in_stream(stream, dptr))

/* --- pools as objects ------------------------------------------------------------------------- */

static CUresult give_pool(CUmemoryPool *handle, struct pool *pool)
{
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemoryPool) pool;
    return CUDA_SUCCESS;
}

static CUresult set_pool(enum pool_home home, uint32_t device, CUmemoryPool pool)
{
    struct pool *found = pool_find(pool);

    REQUIRE(found && found->home == home && found->reserve.device == device && !found->holder &&
            default_pool(home, device));
    pthread_mutex_lock(&pool_lock);
    chosen[home][device] = found;
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    ENTER();
    REQUIRE(pool_out);
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return give_pool(pool_out, default_pool(POOL_ON_DEVICE, (uint32_t) process_device(dev)));
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    ENTER();
    REQUIRE(pool);
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return give_pool(pool, chosen_pool(POOL_ON_DEVICE, (uint32_t) process_device(dev)));
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    ENTER();
    if (process_device(dev) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return set_pool(POOL_ON_DEVICE, (uint32_t) process_device(dev), pool);
}

/* Where a pool of that type and location is. Host memory, and managed memory that is on no device
 * in particular, are counted with the first device and charged to nobody.
 */
static CUresult find_home(const CUmemLocation *location, CUmemAllocationType type,
                          enum pool_home *home, uint32_t *device)
{
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;

    REQUIRE(location && (is_managed || type == CU_MEM_ALLOCATION_TYPE_PINNED));
    *device = 0;
    *home = POOL_ON_HOST;
    switch ((int) location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (process_device(location->id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        *device = (uint32_t) process_device(location->id);
        *home = is_managed ? POOL_MANAGED : POOL_ON_DEVICE;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    default:
        return is_managed && location->type == CU_MEM_LOCATION_TYPE_NONE ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool_out);
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? give_pool(pool_out, default_pool(home, device)) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool);
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? give_pool(pool, chosen_pool(home, device)) : result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    enum pool_home home;
    uint32_t device;
    CUresult result;

    ENTER();
    result = find_home(location, type, &home, &device);
    return result == CUDA_SUCCESS ? set_pool(home, device, pool) : result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    enum pool_home home;
    struct pool *made;
    uint32_t device;
    CUresult result;

    ENTER();
    REQUIRE(pool && poolProps);
    result = find_home(&poolProps->location, poolProps->allocType, &home, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (poolProps->handleTypes & ~(unsigned int) (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                                  CU_MEM_HANDLE_TYPE_FABRIC) ||
        (poolProps->handleTypes && home != POOL_ON_DEVICE))
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&pool_lock);
    made = pool_add(home, device);
    if (made) {
        made->reserve.most = poolProps->maxSize;
        made->handle_types = poolProps->handleTypes;
    }
    pthread_mutex_unlock(&pool_lock);
    return give_pool(pool, made);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && !found->is_default && !found->is_destroyed);
    if (found->holder)
        return pool_close_import(found);
    pthread_mutex_lock(&pool_lock);
    found->is_destroyed = true;
    if (chosen[found->home][found->reserve.device] == found)
        chosen[found->home][found->reserve.device] = defaults[found->home][found->reserve.device];
    note_unused(found, 0);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found);
    pthread_mutex_lock(&pool_lock);
    reserve_shrink(&found->reserve, minBytesToKeep);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

/* The first three attributes are int, the next five cuuint64_t. */
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    const struct pool *found;
    CUresult result = CUDA_SUCCESS;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value);
    pthread_mutex_lock(&pool_lock);
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *) value = found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *) value = found->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *) value = found->reserve.reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *) value = found->reserve.reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *) value = found->reserve.used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *) value = found->reserve.used_high;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct pool *found;
    CUresult result = CUDA_SUCCESS;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && value);
    pthread_mutex_lock(&pool_lock);
    switch ((int) attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        found->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *) value;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        found->threshold = *(cuuint64_t *) value;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* a high-water mark can only be set to 0 */
        if (*(cuuint64_t *) value)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            found->reserve.reserved_high = found->reserve.reserved;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(cuuint64_t *) value)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            found->reserve.used_high = found->reserve.used;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    const struct pool *found;

    ENTER();
    found = pool_find(pool);
    REQUIRE(found && (map || !count));
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        if (process_device(map[i].location.id) < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        /* The device of the pool itself cannot lose its access. */
        if (process_device(map[i].location.id) == (int) found->reserve.device &&
            map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    const struct pool *found;

    ENTER();
    found = pool_find(memPool);
    REQUIRE(flags && found && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    *flags = process_device(location->id) == (int) found->reserve.device
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
