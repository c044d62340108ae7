/* SPDX-License-Identifier: Apache-2.0 */
/* context.c -- creates, uses and destroys contexts.
 *
 * Thread 0 has the primary context of a device, thread 1 contexts of its own; thread 2 has none.
 */
#include <stdio.h>

#include "tenant.h"

enum { OWNER = 1, WITHOUT = 2 };

static CUresult make(struct hand *hand)
{
    if (hand->thread == OWNER)
        return cuCtxCreate(&hand->context, NULL, 0, hand->device);
    return cuDevicePrimaryCtxRetain(&hand->context, hand->device);
}

void context_begin(struct hand *hand)
{
    if (hand->thread == WITHOUT)
        return;
    hand_does(hand, "context");
    if (hand->thread == OWNER)
        hand->device = (CUdevice) hand_pick(hand, DEVICES);
    if (!hand_got(hand, "context", make(hand))) {
        hand->context = NULL;
        return;
    }
    MUST(cuCtxSetCurrent(hand->context));
    MUST(cuStreamCreate(&hand->stream, hand_pick(hand, 2)));
}

/* Drop the items that end with their context. */
static void abandon(struct hand *hand)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < hand->count; i++)
        if (!hand->items[i].family->goes_with_context)
            hand->items[kept++] = hand->items[i];
    hand->count = kept;
}

static void end(struct hand *hand)
{
    bool is_reset = hand_chance(hand, 2);

    if (!hand->context)
        return;
    if (is_reset || hand->thread == OWNER)
        abandon(hand);
    hand_give_all(hand);
    hand_does(hand, "end of context");
    ordered_end_pool(hand);
    MUST(cuStreamDestroy(hand->stream));
    hand->stream = NULL;
    if (hand->thread == OWNER) {
        MUST(cuCtxDestroy(hand->context));
    } else if (is_reset) {
        MUST(cuDevicePrimaryCtxReset(hand->device));
    } else {
        MUST(cuDevicePrimaryCtxRelease(hand->device));
    }
    MUST(cuCtxSetCurrent(NULL));
    hand->context = NULL;
}

static void query(struct hand *hand)
{
    size_t available, total, whole;

    MUST(cuMemGetInfo(&available, &total));
    MUST(cuDeviceTotalMem(&whole, hand->device));
    if (available > total || (!tenant.quota && total != whole) ||
        (tenant.quota &&
         !(board_is_limit(total, tenant.quota) && board_is_limit(whole, tenant.quota))))
        hand_complain(hand, "cuMemGetInfo", (int) (total / MIB));
}

static void trim(struct hand *hand)
{
    CUmemoryPool pool;

    for (CUdevice device = 0; device < DEVICES; device++) {
        MUST(cuDeviceGraphMemTrim(device));
        MUST(cuDeviceGetDefaultMemPool(&pool, device));
        MUST(cuMemPoolTrimTo(pool, 0));
    }
}

static void limit(struct hand *hand)
{
    GOT(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (1 + hand_pick(hand, 8)) * 8 * MIB));
}

static void keep(struct hand *hand)
{
    cuuint64_t bytes = ordered_keep(hand);
    CUmemoryPool pool;

    MUST(cuDeviceGetDefaultMemPool(&pool, hand->device));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static void nonsense(struct hand *hand)
{
    CUdeviceptr none;

    if (cuMemFree(12345) == CUDA_SUCCESS || cuMemRelease(12345) == CUDA_SUCCESS ||
        cuMemAlloc(&none, SIZE_MAX) == CUDA_SUCCESS || cuMemAlloc(NULL, MIB) == CUDA_SUCCESS)
        hand_complain(hand, "nonsense", 0);
}

void context_work(struct hand *hand)
{
    static void (*const deeds[])(struct hand *) = {query, query, trim, limit, keep, nonsense};

    if (hand->thread == WITHOUT) {
        return;
    } else if (!hand->context) {
        context_begin(hand);
    } else if (hand_chance(hand, 8)) {
        end(hand);
        context_begin(hand);
    } else {
        hand_does(hand, "deed");
        deeds[hand_pick(hand, LENGTH(deeds))](hand);
    }
}

/* Memory that a tenant freed while others had it open stays charged until its next query. */
void context_search_all(struct hand *hand)
{
    CUcontext own, primary;

    MUST(cuCtxGetCurrent(&own));
    for (CUdevice device = 0; device < DEVICES; device++) {
        if (!GOT(cuDevicePrimaryCtxRetain(&primary, device)))
            continue; /* that was the query */
        MUST(cuCtxSetCurrent(primary));
        query(hand);
        MUST(cuDevicePrimaryCtxRelease(device));
    }
    MUST(cuCtxSetCurrent(own));
}

void context_rest(struct hand *hand)
{
    hand_give_all(hand);
    if (hand->thread == OWNER)
        end(hand);
    ordered_end_pool(hand);
    if (!hand->context)
        return;
    GOT(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE,
                      8 * MIB)); /* recreates the context after a reset */
    MUST(cuCtxSynchronize());
    trim(hand);
}
