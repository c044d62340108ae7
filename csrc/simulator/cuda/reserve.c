/* SPDX-License-Identifier: Apache-2.0 */
/* reserve.c -- device memory reserved by pools and graphs, in chunks. */
#include "cuda/reserve.h"

#include "clock.h"
#include "memory.h"
#include "share.h"

#define MIB UINT64_C(0x100000) /* the least that is charged as a large allocation */

static uint64_t by_chunks(uint64_t bytes)
{
    uint64_t chunk = process.machine->config.law.pool_chunk_bytes;

    return (bytes + chunk - 1) / chunk * chunk;
}

uint64_t reserve_round(uint64_t bytes)
{
    uint64_t unit = bytes >= MIB ? 2 * MIB : 512;

    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* Keep the share at the reserve's size, which others keep if this process dies. */
static void note_size(const struct reserve *reserve)
{
    if (reserve->share)
        share_resize(process.machine, reserve->share - 1, reserve->reserved);
}

/* Mapping and unmapping take time, for the caller and for others that need the reserve. */
static void wait_for_chunks(const struct reserve *reserve, uint64_t bytes)
{
    const struct law *law = &process.machine->config.law;

    if (law->pool_chunk_ns && !reserve->is_free_of_charge)
        clock_sleep_until(clock_now() + bytes / law->pool_chunk_bytes * law->pool_chunk_ns);
}

static bool take(struct reserve *reserve, uint64_t bytes)
{
    if (reserve->most && reserve->reserved + bytes > reserve->most)
        return false;
    if (!reserve->is_free_of_charge &&
        !machine_charge(process.machine, reserve->device, process.slot, bytes))
        return false;
    reserve->reserved += bytes;
    if (reserve->reserved_high < reserve->reserved)
        reserve->reserved_high = reserve->reserved;
    note_size(reserve);
    wait_for_chunks(reserve, bytes);
    return true;
}

bool reserve_grow(struct reserve *reserve, uint64_t bytes)
{
    uint64_t missing;

    if (reserve->used + bytes <= reserve->reserved)
        return true;
    missing = reserve->used + bytes - reserve->reserved;
    return take(reserve, by_chunks(missing)) ||
           take(reserve, memory_round(missing < MIB ? MIB : missing));
}

uint64_t reserve_take(struct reserve *reserve, uint64_t bytes)
{
    if (take(reserve, by_chunks(bytes)))
        return by_chunks(bytes);
    bytes = memory_round(bytes < MIB ? MIB : bytes);
    return take(reserve, bytes) ? bytes : 0;
}

void reserve_give(struct reserve *reserve, uint64_t bytes)
{
    machine_discharge(process.machine, reserve->device, process.slot, bytes);
    reserve->reserved -= bytes;
    note_size(reserve);
    wait_for_chunks(reserve, bytes);
}

bool reserve_use(struct reserve *reserve, uint64_t bytes)
{
    if (!reserve_grow(reserve, bytes))
        return false;
    reserve->used += bytes;
    if (reserve->used_high < reserve->used)
        reserve->used_high = reserve->used;
    return true;
}

void reserve_unuse(struct reserve *reserve, uint64_t bytes)
{
    reserve->used -= bytes;
}

void reserve_shrink(struct reserve *reserve, uint64_t keep)
{
    uint64_t least = by_chunks(reserve->used);

    if (keep < least)
        keep = least;
    if (reserve->reserved <= keep ||
        (reserve->share && share_is_held(process.machine, reserve->share - 1, true)))
        return;
    if (!reserve->is_free_of_charge)
        machine_discharge(process.machine, reserve->device, process.slot, reserve->reserved - keep);
    wait_for_chunks(reserve, reserve->reserved - keep);
    reserve->reserved = keep;
    note_size(reserve);
}

void reserve_end(struct reserve *reserve)
{
    bool is_ours = !reserve->share || share_end(process.machine, reserve->share - 1);

    if (is_ours && !reserve->is_free_of_charge)
        machine_discharge(process.machine, reserve->device, process.slot, reserve->reserved);
    reserve->share = 0;
    reserve->reserved = 0;
}
