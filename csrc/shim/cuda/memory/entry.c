/* SPDX-License-Identifier: Apache-2.0 */
/* entry.c -- entries of charged allocations; see entry.h. */
#include "shim/cuda/memory/entry.h"
#include "core/blocks.h"
#include "shim/cuda/context/context.h"
#include "shim/cuda/memory/link.h"

void entry_release(const struct allocation *allocation)
{
    if (allocation->in_block) {
        /* If others have it open, it is charged separately from its block (share.c). */
        if (unlikely(allocation->link) && link_end(allocation))
            ledger_refund(&shim.ledger, allocation->device, BLOCKS_BYTES);
        if (blocks_leave(allocation->address))
            ledger_refund(&shim.ledger, allocation->device, BLOCKS_BYTES);
    } else if (likely(!allocation->link) || link_end(allocation)) {
        ledger_refund(&shim.ledger, allocation->device, allocation->bytes);
    }
}

void entry_check_life(const struct allocation *allocation)
{
    const struct context *context = allocation->owner;

    if (unlikely(context && context_life(context) != allocation->life) &&
        allocations_take_back(allocation))
        entry_release(allocation);
}

static int insert(const struct allocation *allocation)
{
    struct allocation replaced;
    int result = allocations_insert(allocation, &replaced);

    /* The driver reuses an address only after a free, so here one happened that no hook saw. */
    if (unlikely(result > 0))
        entry_release(&replaced);
    return result;
}

int entry_insert(const struct allocation *allocation)
{
    int result = insert(allocation);

    if (unlikely(result < 0))
        return result;
    result = allocation->in_block ? blocks_enter(allocation->address) : 1;
    if (unlikely(result < 0)) {
        allocations_take_back(allocation);
        return result;
    }
    if (!result)
        ledger_refund(&shim.ledger, allocation->device, BLOCKS_BYTES);
    entry_check_life(allocation);
    return 0;
}

void entry_restore(const struct allocation *allocation)
{
    if (allocation->recorded)
        blocks_put_back(allocation);
    else
        insert(allocation); /* cannot fail: taking it out has left room */
    entry_check_life(allocation);
}
