/* SPDX-License-Identifier: Apache-2.0 */
/* managed.c -- hooks that move managed memory to a device; see managed.h.
 *
 * Each device's charge is an entry of the allocation table with a kind of its own. Its owner is
 * that of the allocation, so it goes with its context, too.
 */
#include "shim/cuda/memory/managed.h"
#include "core/blocks.h"
#include "shim/cuda/memory/charge.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/physical.h"
#include "shim/cuda/work/transfer.h"

enum { UNDONE = 16 };

int managed_moved;

static int has_managed;

/* The first UNDONE charges of one call: further ones stay until the memory is freed. */
struct move {
    unsigned count;
    struct allocation made[UNDONE];
};

void managed_note(void)
{
    __atomic_store_n(&has_managed, 1, __ATOMIC_RELAXED);
}

static enum allocation_kind kind_on(unsigned device)
{
    return (enum allocation_kind)(ALLOCATION_MOVED + device);
}

void managed_take(CUdeviceptr address, struct managed_charges *taken)
{
    taken->count = 0;
    for (unsigned device = 0; device < shim.region.device_count; device++)
        taken->count +=
            (unsigned) allocations_take(kind_on(device), address, &taken->charges[taken->count]);
}

void managed_release(const struct managed_charges *taken)
{
    for (unsigned i = 0; i < taken->count; i++)
        entry_release(&taken->charges[i]);
}

void managed_restore(const struct managed_charges *taken)
{
    for (unsigned i = 0; i < taken->count; i++)
        entry_restore(&taken->charges[i]);
}

static void undo(const struct move *move)
{
    for (unsigned i = 0; i < move->count; i++)
        if (allocations_take_back(&move->made[i]))
            entry_release(&move->made[i]);
}

/* Charge *device* for memory that was allocated elsewhere, unless it is charged already. */
static CUresult charge_on(const struct allocation *memory, unsigned device, struct move *move)
{
    struct allocation made = *memory, found;
    CUresult result;

    if (memory->device == device || allocations_find(kind_on(device), memory->address, &found))
        return CUDA_SUCCESS;
    if (made.in_block)
        made.bytes = BLOCKS_BYTES;
    result = charge_device(device, made.bytes);
    if (result != CUDA_SUCCESS)
        return result;
    made.in_block = 0;
    made.device = (uint8_t) device;
    made.kind = (uint8_t) kind_on(device);
    __atomic_store_n(&managed_moved, 1, __ATOMIC_SEQ_CST);
    if (entry_insert(&made) != 0) {
        entry_release(&made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* It may have been freed before this entry was visible. */
    if (!allocations_find(ALLOCATION_LINEAR, memory->address, &found) ||
        found.owner != memory->owner || found.life != memory->life) {
        if (allocations_take_back(&made))
            entry_release(&made);
    } else if (move->count < UNDONE) {
        move->made[move->count++] = made;
    }
    return CUDA_SUCCESS;
}

/* Whether calls that move memory have to be examined at all; the driver may still refuse them. */
static int may_move(void)
{
    return unlikely(__atomic_load_n(&has_managed, __ATOMIC_RELAXED)) && shim.open &&
           shim.region.device_count > 1;
}

/* Charge *device* (an index in the quota; below 0: none) for the memory in a range. */
static CUresult charge_range(CUdeviceptr address, size_t bytes, int device, struct move *move)
{
    CUdeviceptr end = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
    CUresult result = CUDA_SUCCESS;
    struct allocation memory;
    CUdeviceptr base;
    size_t size;

    while (device >= 0 && address < end && result == CUDA_SUCCESS &&
           driver.cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS &&
           allocations_find(ALLOCATION_LINEAR, base, &memory)) {
        result = charge_on(&memory, (unsigned) device, move);
        if (size > UINT64_MAX - base || base + size <= address)
            break;
        address = base + size;
    }
    if (result != CUDA_SUCCESS)
        undo(move);
    return result;
}

/* The same for a list of ranges: places[k] applies to the ranges from indices[k] on. */
static CUresult charge_list(const CUdeviceptr *list, const size_t *sizes, size_t count,
                            const CUmemLocation *places, const size_t *indices, size_t place_count,
                            struct move *move)
{
    CUresult result = CUDA_SUCCESS;
    size_t place = 0;

    if (!list || !sizes || !places || !indices || !place_count)
        return result;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        while (place + 1 < place_count && indices[place + 1] <= i)
            place++;
        result = charge_range(list[i], sizes[i], physical_place(&places[place]), move);
    }
    return result;
}

/* A hook: charge, pay for the time and move; undo the charges if the driver refused. */
#define MOVE(symbol, charged, bytes, stream, params, ...)                                 \
    static CUresult paced_##symbol params                                                 \
    {                                                                                     \
        PACED(transfer_begin(&work, TRANSFER_MOVED, bytes, stream), symbol, __VA_ARGS__); \
    }                                                                                     \
    CUresult symbol params                                                                \
    {                                                                                     \
        struct move move = {.count = 0};                                                  \
        CUresult result = may_move() ? charged : CUDA_SUCCESS;                            \
                                                                                          \
        if (result != CUDA_SUCCESS)                                                       \
            return result;                                                                \
        result = paced_##symbol(__VA_ARGS__);                                             \
        if (result != CUDA_SUCCESS)                                                       \
            undo(&move);                                                                  \
        return result;                                                                    \
    }

#define MOVE_RANGE(symbol, place, stream, params, ...) \
    MOVE(symbol, charge_range(address, count, place, &move), count, stream, params, __VA_ARGS__)

#define MOVE_LIST(symbol, stream)                                                                  \
    MOVE(symbol, charge_list(list, sizes, count, places, indices, place_count, &move),             \
         transfer_list_bytes(sizes, count), stream,                                                \
         (CUdeviceptr * list, size_t *sizes, size_t count, CUmemLocation *places, size_t *indices, \
          size_t place_count, unsigned long long flags, CUstream on),                              \
         list, sizes, count, places, indices, place_count, flags, on)

MOVE_RANGE(cuMemPrefetchAsync, shim_device(to), STREAM_LEGACY(stream),
           (CUdeviceptr address, size_t count, CUdevice to, CUstream stream), address, count, to,
           stream)
MOVE_RANGE(cuMemPrefetchAsync_ptsz, shim_device(to), STREAM_PER_THREAD(stream),
           (CUdeviceptr address, size_t count, CUdevice to, CUstream stream), address, count, to,
           stream)
MOVE_RANGE(cuMemPrefetchAsync_v2, physical_place(&location), STREAM_LEGACY(stream),
           (CUdeviceptr address, size_t count, CUmemLocation location, unsigned int flags,
            CUstream stream),
           address, count, location, flags, stream)
MOVE_RANGE(cuMemPrefetchAsync_v2_ptsz, physical_place(&location), STREAM_PER_THREAD(stream),
           (CUdeviceptr address, size_t count, CUmemLocation location, unsigned int flags,
            CUstream stream),
           address, count, location, flags, stream)
MOVE_LIST(cuMemPrefetchBatchAsync, STREAM_LEGACY(on))
MOVE_LIST(cuMemPrefetchBatchAsync_ptsz, STREAM_PER_THREAD(on))
MOVE_LIST(cuMemDiscardAndPrefetchBatchAsync, STREAM_LEGACY(on))
MOVE_LIST(cuMemDiscardAndPrefetchBatchAsync_ptsz, STREAM_PER_THREAD(on))

/* Memory moves to its preferred location when it is touched, by whichever device. */
#define ADVISE(symbol, place, params, ...)                                \
    CUresult symbol params                                                \
    {                                                                     \
        struct move move = {.count = 0};                                  \
        CUresult result = CUDA_SUCCESS;                                   \
                                                                          \
        if (!shim.open)                                                   \
            return CUDA_ERROR_NOT_INITIALIZED;                            \
        if (may_move() && advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) \
            result = charge_range(address, count, place, &move);          \
        if (result != CUDA_SUCCESS)                                       \
            return result;                                                \
        result = driver.symbol(__VA_ARGS__);                              \
        if (result != CUDA_SUCCESS)                                       \
            undo(&move);                                                  \
        return result;                                                    \
    }

ADVISE(cuMemAdvise, shim_device(to),
       (CUdeviceptr address, size_t count, CUmem_advise advice, CUdevice to), address, count,
       advice, to)
ADVISE(cuMemAdvise_v2, physical_place(&location),
       (CUdeviceptr address, size_t count, CUmem_advise advice, CUmemLocation location), address,
       count, advice, location)
