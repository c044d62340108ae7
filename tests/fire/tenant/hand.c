/* SPDX-License-Identifier: Apache-2.0 */
/* hand.c -- the items that a thread holds, and its random choices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tenant.h"

enum { IDLE_US = 1000 };

uint64_t hand_random(struct hand *hand) /* xorshift64* */
{
    hand->random ^= hand->random >> 12;
    hand->random ^= hand->random << 25;
    hand->random ^= hand->random >> 27;
    return hand->random * UINT64_C(0x2545f4914f6cdd1d);
}

unsigned hand_pick(struct hand *hand, unsigned count)
{
    return (unsigned) ((hand_random(hand) >> 32) % count);
}

bool hand_chance(struct hand *hand, unsigned one_in)
{
    return hand_pick(hand, one_in) == 0;
}

size_t hand_size(struct hand *hand)
{
    unsigned magnitude = 6 + hand_pick(hand, 20); /* 64 bytes to 64 MiB */

    return ((size_t) 1 << magnitude) + hand_pick(hand, 1u << magnitude);
}

size_t hand_pages(struct hand *hand)
{
    return PAGE << hand_pick(hand, 5);
}

void hand_does(struct hand *hand, const char *what)
{
    snprintf(hand->board->doing, sizeof(hand->board->doing), "%s", what);
}

void hand_complain(const struct hand *hand, const char *what, int value)
{
    dprintf(STDERR_FILENO, "tenant %u, thread %u, seed %llu, %s: %s gave %d\n", hand->place,
            hand->thread, (unsigned long long) tenant.seed, hand->board->doing, what, value);
    _exit(3);
}

bool hand_got(struct hand *hand, const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        hand_complain(hand, call, result);
    atomic_fetch_add(&hand->board->refused, 1);
    return false;
}

void hand_must(struct hand *hand, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        hand_complain(hand, call, result);
}

static CUdeviceptr last_word(const struct item *item)
{
    return item->address + (item->size / 4 - 1) * 4;
}

void hand_mark(struct hand *hand, struct item *item)
{
    item->pattern = (uint32_t) hand_random(hand) | 1;
    MUST(cuMemsetD32Async(item->address, item->pattern, 1, hand->stream));
    MUST(cuMemsetD32Async(last_word(item), item->pattern, 1, hand->stream));
    MUST(cuStreamSynchronize(hand->stream));
}

void hand_check(struct hand *hand, const struct item *item)
{
    uint32_t words[2];

    if (!item->pattern)
        return;
    MUST(cuMemcpyDtoH(&words[0], item->address, 4));
    MUST(cuMemcpyDtoH(&words[1], last_word(item), 4));
    if (words[0] != item->pattern || words[1] != item->pattern)
        hand_complain(hand, "what was written before", (int) words[0]);
}

/* FIRE_FAMILIES, if set, limits the test to the families that it names, to narrow a failure down.
 */
static bool is_wanted(const struct family *family)
{
    const char *names = getenv("FIRE_FAMILIES");

    return !names || strstr(names, family->name);
}

/* NULL if all selected families need a context, and this thread has none. */
static const struct family *pick_family(struct hand *hand)
{
    unsigned first = hand_pick(hand, family_count);

    for (unsigned i = 0; i < family_count; i++) {
        const struct family *family = families[(first + i) % family_count];

        if (is_wanted(family) && (hand->context || !family->needs_context))
            return family;
    }
    return NULL;
}

void hand_take(struct hand *hand)
{
    struct item *item = &hand->items[hand->count];

    memset(item, 0, sizeof(*item));
    item->family = pick_family(hand);
    if (!item->family) {
        usleep(IDLE_US);
        return;
    }
    item->device = hand->context ? hand->device : (CUdevice) hand_pick(hand, DEVICES);
    hand_does(hand, item->family->name);
    if (item->family->take(hand, item))
        hand->count++;
    else
        hand_give_some(hand);
}

void hand_give(struct hand *hand, unsigned which)
{
    struct item item = hand->items[which];

    hand->items[which] = hand->items[--hand->count];
    hand_does(hand, item.family->name);
    hand_check(hand, &item);
    item.family->give(hand, &item);
}

/* Others may be waiting for memory, too. */
void hand_give_some(struct hand *hand)
{
    for (unsigned left = hand->count / 2; hand->count > left;)
        hand_give(hand, hand_pick(hand, hand->count));
}

void hand_give_all(struct hand *hand)
{
    while (hand->count)
        hand_give(hand, hand->count - 1);
}
