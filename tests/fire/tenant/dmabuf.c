/* SPDX-License-Identifier: Apache-2.0 */
/* dmabuf.c -- memory that was freed, and that a dma-buf keeps: in this process, and in children
 * that are forked meanwhile. */
#include <unistd.h>

#include "families.h"

static bool take_buffer(struct hand *hand, struct item *item)
{
    int descriptor;
    bool is_taken;

    item->size = hand_pages(hand);
    if (!GOT(cuMemAlloc(&item->address, item->size)))
        return false;
    is_taken = GOT(cuMemGetHandleForAddressRange(&descriptor, item->address, item->size,
                                                 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    if (is_taken)
        item->second = (CUmemGenericAllocationHandle) descriptor;
    if (hand_chance(hand, 8))
        MUST(cuMemFreeAsync(item->address, hand->stream));
    else
        MUST(cuMemFree(item->address));
    return is_taken;
}

static void give_buffer(struct hand *hand, struct item *item)
{
    (void) hand;
    close((int) item->second);
}

const struct family family_buffer = {
    .name = "dma-buf", .take = take_buffer, .give = give_buffer, .needs_context = true};
