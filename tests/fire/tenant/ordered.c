/* SPDX-License-Identifier: Apache-2.0 */
/* ordered.c -- memory in the order of a stream: of the device's pool, and of a thread's own. */
#include "families.h"

static bool take_ordered(struct hand *hand, struct item *item)
{
    item->size = hand_size(hand);
    if (!GOT(cuMemAllocAsync(&item->address, item->size, hand->stream)))
        return false;
    hand_mark(hand, item);
    return true;
}

static void give_ordered(struct hand *hand, struct item *item)
{
    if (hand_chance(hand, 4))
        MUST(cuMemFree(item->address));
    else
        MUST(cuMemFreeAsync(item->address, hand->stream));
}

static bool make_pool(struct hand *hand)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = place_on(hand->device)};
    cuuint64_t keep = hand_pick(hand, 128) * MIB;

    if (!GOT(cuMemPoolCreate(&hand->pool, &props))) {
        hand->pool = NULL;
        return false;
    }
    MUST(cuMemPoolSetAttribute(hand->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    return true;
}

void ordered_end_pool(struct hand *hand)
{
    if (hand->pool)
        MUST(cuMemPoolDestroy(hand->pool));
    hand->pool = NULL;
}

/* A pool may be destroyed while memory of it is in use. */
static bool take_own(struct hand *hand, struct item *item)
{
    if (hand->pool && hand_chance(hand, 16))
        ordered_end_pool(hand);
    if (!hand->pool && !make_pool(hand))
        return false;
    if (hand_chance(hand, 8) && !GOT(cuMemPoolTrimTo(hand->pool, hand_pick(hand, 64) * MIB)))
        return false;
    item->size = hand_size(hand);
    if (!GOT(cuMemAllocFromPoolAsync(&item->address, item->size, hand->pool, hand->stream)))
        return false;
    hand_mark(hand, item);
    return true;
}

const struct family family_ordered = {
    .name = "ordered", .take = take_ordered, .give = give_ordered, .needs_context = true};
const struct family family_ordered_own = {
    .name = "pool", .take = take_own, .give = give_ordered, .needs_context = true};
