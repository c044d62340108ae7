/* SPDX-License-Identifier: Apache-2.0 */
/* ordered.c -- stream-ordered memory: from the device's pool, and from a thread's own pool. */
#include "families.h"

enum { FILLED = 16, ROUNDS = 8 };

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

cuuint64_t ordered_keep(struct hand *hand)
{
    switch (hand_pick(hand, 3)) {
    case 0:
        return 0;
    case 1:
        return hand_pick(hand, 128) * MIB;
    default:
        return UINT64_MAX;
    }
}

static bool make_pool(struct hand *hand)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = place_on(hand->device)};
    cuuint64_t keep = ordered_keep(hand);

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

/* Allocate all free memory, piece by piece, in a pool that keeps it; then repeatedly free and
 * reallocate a quarter of it, beside others. The pool belongs to the item and ends with it. */
static bool take_filled(struct hand *hand, struct item *item)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = place_on(hand->device)};
    CUdeviceptr blocks[FILLED];
    cuuint64_t all = UINT64_MAX;
    unsigned count = 0;

    if (!GOT(cuMemPoolCreate(&item->pool, &props)))
        return false;
    MUST(cuMemPoolSetAttribute(item->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    item->size = (16 + hand_pick(hand, 112)) * MIB;
    while (count < FILLED &&
           GOT(cuMemAllocFromPoolAsync(&blocks[count], item->size, item->pool, hand->stream)))
        count++;
    for (unsigned round = 0; count && round < ROUNDS; round++) {
        unsigned which = hand_pick(hand, count);

        MUST(cuMemFreeAsync(blocks[which], hand->stream));
        if (!GOT(cuMemAllocFromPoolAsync(&blocks[which], item->size, item->pool, hand->stream)))
            blocks[which] = blocks[--count];
    }
    for (unsigned i = 1; i < count; i++)
        MUST(cuMemFreeAsync(blocks[i], hand->stream));
    if (count) {
        item->address = blocks[0];
        hand_mark(hand, item);
        return true;
    }
    MUST(cuMemPoolDestroy(item->pool));
    return false;
}

static void give_filled(struct hand *hand, struct item *item)
{
    MUST(cuMemFreeAsync(item->address, hand->stream));
    MUST(cuMemPoolDestroy(item->pool));
}

const struct family family_filled = {
    .name = "filled", .take = take_filled, .give = give_filled, .needs_context = true};
const struct family family_ordered = {
    .name = "ordered", .take = take_ordered, .give = give_ordered, .needs_context = true};
const struct family family_ordered_own = {
    .name = "pool", .take = take_own, .give = give_ordered, .needs_context = true};
