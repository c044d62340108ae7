/* SPDX-License-Identifier: Apache-2.0 */
/* green.c -- green contexts. Each retains the primary context of its device, which owns the memory
 * allocated in it: so only thread 0, which alone resets the primary one, allocates there. */
#include "families.h"

enum { SELDOM = 4 /* since they take as much memory as a context */ };

static bool make(struct hand *hand, struct item *item)
{
    CUdevResourceDesc description;
    CUdevResource processors;

    MUST(cuDeviceGetDevResource(item->device, &processors, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &processors, 1));
    return GOT(
        cuGreenCtxCreate(&item->green, description, item->device, CU_GREEN_CTX_DEFAULT_STREAM));
}

static void fill(struct hand *hand, struct item *item)
{
    CUcontext context;
    bool is_taken;

    MUST(cuCtxFromGreenCtx(&context, item->green));
    MUST(cuCtxPushCurrent(context));
    item->size = hand_size(hand);
    is_taken = GOT(cuMemAlloc(&item->address, item->size));
    MUST(cuCtxPopCurrent(&context));
    if (is_taken)
        hand_mark(hand, item);
    else
        item->address = 0;
}

static bool take_green(struct hand *hand, struct item *item)
{
    if (!hand_chance(hand, SELDOM) || !make(hand, item))
        return false;
    if (hand->thread == 0 && hand->context)
        fill(hand, item);
    return true;
}

/* Memory allocated in it outlives it. */
static void give_green(struct hand *hand, struct item *item)
{
    bool is_first = hand_chance(hand, 2);

    if (is_first)
        MUST(cuGreenCtxDestroy(item->green));
    if (item->address)
        MUST(cuMemFree(item->address));
    if (!is_first)
        MUST(cuGreenCtxDestroy(item->green));
}

const struct family family_green = {.name = "green", .take = take_green, .give = give_green};
