/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c -- hash table of lock-free lists of blocks; see blocks.h. */
#include "core/blocks.h"
#include "core/compiler.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LISTS 512 /* adjacent blocks are in adjacent lists */

struct block {
    uint64_t number;
    int64_t count;
    struct block *next;
};

static struct block *lists[LISTS];

static struct block *find(struct block *block, uint64_t number)
{
    while (block && block->number != number)
        block = block->next;
    return block;
}

/* NULL if there is no memory for it. */
static struct block *make(struct block **list, uint64_t number)
{
    struct block *made = calloc(1, sizeof(*made));
    struct block *other;

    if (!made)
        return NULL;
    made->number = number;
    made->next = __atomic_load_n(list, __ATOMIC_ACQUIRE);
    do {
        other = find(made->next, number);
        if (other) {
            free(made);
            return other;
        }
    } while (!__atomic_compare_exchange_n(list, &made->next, made, 0, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return made;
}

int blocks_enter(uint64_t address)
{
    uint64_t number = address / BLOCKS_BYTES;
    struct block **list = &lists[number % LISTS];
    struct block *block = find(__atomic_load_n(list, __ATOMIC_ACQUIRE), number);

    if (unlikely(!block))
        block = make(list, number);
    if (unlikely(!block))
        return -ENOMEM;
    return __atomic_add_fetch(&block->count, 1, __ATOMIC_ACQ_REL) == 1;
}

int blocks_leave(uint64_t address)
{
    uint64_t number = address / BLOCKS_BYTES;
    struct block *block = find(__atomic_load_n(&lists[number % LISTS], __ATOMIC_ACQUIRE), number);

    return block && __atomic_sub_fetch(&block->count, 1, __ATOMIC_ACQ_REL) == 0;
}

void blocks_after_fork(void)
{
    memset(lists, 0, sizeof(lists));
}
