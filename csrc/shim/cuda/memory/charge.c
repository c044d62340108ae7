/* SPDX-License-Identifier: Apache-2.0 */
/* charge.c -- connects the hooks to the ledger; see charge.h. */
#include "shim/cuda/memory/charge.h"
#include "core/blocks.h"
#include "shim/cuda/memory/deferred_free.h"
#include "shim/cuda/context/green.h"
#include "shim/cuda/memory/entry.h"
#include "shim/cuda/memory/link.h"
#include "shim/cuda/memory/sparse.h"
#include "shim/driver.h"
#include "shim/lifecycle.h"
#include "shim/suspension.h"
#include "core/log.h"

#include <stdlib.h>

#define MIB UINT64_C(1048576)

CUresult charge_result(int ledger_result)
{
    return likely(ledger_result == 0) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t charge_size(uint64_t bytes)
{
    uint64_t unit = bytes >= MIB ? 2 * MIB : 512;

    /* Units are powers of two: no division in the path of every allocation. */
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) & ~(unit - 1);
}

int charge_try(unsigned device, uint64_t bytes)
{
    int result;

    suspension_note();
    shim_watch_limits();
    deferred_free_settle();
    result = ledger_charge(&shim.ledger, device, bytes);
    /* Before it refused, the ledger reaped dead processes, and so ended their imports. */
    if (unlikely(result != 0) && link_collect(device))
        result = ledger_charge(&shim.ledger, device, bytes);
    return result;
}

CUresult charge_refused(unsigned device, uint64_t bytes)
{
    log_info("refused %llu bytes on device %u: the quota is %llu bytes", (unsigned long long) bytes,
             device, (unsigned long long) shim.ledger.limit[device]);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_device(unsigned device, uint64_t bytes)
{
    if (likely(charge_try(device, bytes) == 0) ||
        (lifecycle_make_room(device) && charge_try(device, bytes) == 0))
        return CUDA_SUCCESS;
    return charge_refused(device, bytes);
}

/* The charge together with the reserve of a context that is not charged yet. */
static uint64_t bytes_with_reserve(const struct charge *charge)
{
    return charge->bytes + (charge->context ? 0 : context_reserve(charge->device));
}

CUresult charge_find_current(struct charge *charge, uint64_t bytes)
{
    CUresult result = driver.cuCtxGetCurrent(&charge->handle);
    int device;

    if (result != CUDA_SUCCESS)
        return result;
    if (!charge->handle)
        return CUDA_ERROR_INVALID_CONTEXT;
    charge->context = context_find(charge->handle);
    if (unlikely(!charge->context) && green_name())
        charge->context = context_find(charge->handle);
    if (likely(charge->context)) {
        charge->life = context_life(charge->context);
        device = (int) charge->context->device;
    } else {
        device = context_device(charge->handle);
    }
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    charge->device = (unsigned) device;
    charge->link = 0;
    charge->small = 0;
    charge->bytes = charge_size(bytes);
    return unlikely(charge->bytes == UINT64_MAX) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult charge_found(const struct charge *charge)
{
    uint64_t bytes = bytes_with_reserve(charge);

    return likely(bytes) ? charge_device(charge->device, bytes) : CUDA_SUCCESS;
}

CUresult charge_current(struct charge *charge, uint64_t bytes)
{
    CUresult result = charge_find_current(charge, bytes);

    return likely(result == CUDA_SUCCESS) ? charge_found(charge) : result;
}

_Static_assert(BLOCKS_BYTES == BLOCK_BYTES, "the ledger reserves what a block is charged");

/* Charge a whole block instead, if *bytes* of linear memory are small enough to share one. */
static void charge_block(struct charge *charge, uint64_t bytes)
{
    charge->small = bytes <= BLOCKS_LARGEST ? charge->bytes : 0;
    if (charge->small)
        charge->bytes = BLOCKS_BYTES;
}

CUresult charge_linear(struct charge *charge, uint64_t bytes)
{
    CUresult result = charge_find_current(charge, bytes);

    if (unlikely(result != CUDA_SUCCESS))
        return result;
    charge_block(charge, bytes);
    return charge_found(charge);
}

CUresult charge_adjust(struct charge *charge, uint64_t bytes)
{
    struct charge wanted = {.bytes = charge_size(bytes)};

    charge_block(&wanted, bytes);
    if (wanted.bytes < charge->bytes)
        ledger_refund(&shim.ledger, charge->device, charge->bytes - wanted.bytes);
    else if (wanted.bytes > charge->bytes &&
             charge_device(charge->device, wanted.bytes - charge->bytes) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    charge->bytes = wanted.bytes;
    charge->small = wanted.small;
    return CUDA_SUCCESS;
}

void charge_refund(const struct charge *charge)
{
    ledger_refund(&shim.ledger, charge->device, bytes_with_reserve(charge));
}

/* Small allocations of a destroyed owner. */
struct small_list {
    struct allocation *entries;
    size_t count;
    size_t room;
};

static void note_small(struct small_list *list, const struct allocation *allocation)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct allocation *larger = realloc(list->entries, room * sizeof(*larger));

        if (!larger)
            return; /* its block stays charged */
        list->entries = larger;
        list->room = room;
    }
    list->entries[list->count++] = *allocation;
}

/* The table is locked. */
static void release_owned(const struct allocation *allocation, void *argument)
{
    if (allocation->in_block)
        note_small(argument, allocation);
    else
        entry_release(allocation);
    if (allocation->kind == ALLOCATION_ARRAY)
        sparse_forget(allocation->address);
}

void charge_context_ended(const struct context *context)
{
    struct small_list list = {.entries = NULL};

    allocations_take_owned(context, release_owned, &list);
    for (size_t i = 0; i < list.count; i++)
        entry_release(&list.entries[i]);
    free(list.entries);
}

struct context *charge_settle_context(struct charge *charge)
{
    if (unlikely(!charge->context)) {
        charge->context =
            context_register(charge->handle, charge->device, 0, context_reserve(charge->device));
        if (charge->context)
            charge->life = context_life(charge->context);
    }
    return charge->context;
}

/* Enter a small allocation into its block, if it can be recorded there: 1. */
static int enter_recorded(const struct charge *charge, uint64_t address)
{
    struct blocks_owner owner = {charge->context, charge->life, charge->device};
    struct allocation stale;
    int mixed = 0;
    enum blocks_recorded recorded = blocks_record(address, charge->small, &owner, &mixed);

    if (unlikely(recorded == BLOCKS_NOT_RECORDED))
        return 0;
    if (likely(recorded == BLOCKS_SHARED))
        ledger_refund(&shim.ledger, charge->device, BLOCKS_BYTES);
    if (unlikely(mixed) && allocations_take_unrecorded(address, &stale))
        entry_release(&stale);
    if (unlikely(context_life(charge->context) != charge->life)) {
        struct allocation entered;

        if (blocks_find(address, &entered))
            entry_check_life(&entered);
    }
    return 1;
}

CUresult charge_settle(struct charge *charge, enum allocation_kind kind, uint64_t address)
{
    struct allocation allocation;

    if (unlikely(!charge_settle_context(charge)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (likely(charge->small && kind == ALLOCATION_LINEAR && !charge->link) &&
        likely(enter_recorded(charge, address)))
        return CUDA_SUCCESS;
    allocation = (struct allocation) {.address = address,
                                      .bytes = charge->small ? charge->small : charge->bytes,
                                      .owner = charge->context,
                                      .life = charge->life,
                                      .link = charge->link,
                                      .device = charge->device & 0x7f,
                                      .in_block = charge->small != 0,
                                      .kind = kind};
    return charge_result(entry_insert(&allocation));
}
