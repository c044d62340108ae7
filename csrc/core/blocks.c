/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c -- hash table of lock-free lists of blocks; see blocks.h. */
#include "core/blocks.h"
#include "core/compiler.h"
#include "core/lock.h"
#include "core/spin.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LISTS   512 /* adjacent blocks are in adjacent lists */
#define UNIT    512 /* bytes; what is recorded begins and ends at multiples of it */
#define UNITS   (BLOCKS_BYTES / UNIT)
#define MOST    128 /* units of what is recorded, so that its end is near its beginning */
#define IN_WORD 64

struct maps {
    struct {
        uint64_t first; /* units in which an allocation begins */
        uint64_t last;  /* and ends: in the same cache line */
    } words[UNITS / IN_WORD];
};

struct block {
    uint64_t number;
    struct block *next;
    struct maps *maps; /* NULL: nothing was recorded yet */
    const void *owner; /* this and the next two of what is recorded, if *held* */
    uint32_t life;
    uint8_t device;
    uint8_t held;
    int locked;
    uint32_t count;
    uint32_t recorded; /* of those */
} __attribute__((aligned(64)));

static struct block *lists[LISTS];
static unsigned order; /* of making a block and of taking all of an owner: each counts here */

static inline struct block *find(uint64_t number)
{
    struct block *block = __atomic_load_n(&lists[number % LISTS], __ATOMIC_ACQUIRE);

    while (block && block->number != number)
        block = block->next;
    return block;
}

/* NULL if there is no memory for it. */
static struct block *make(uint64_t number)
{
    struct block **list = &lists[number % LISTS];
    struct block *made = aligned_alloc(sizeof(*made), sizeof(*made));
    struct block *head = __atomic_load_n(list, __ATOMIC_ACQUIRE);
    struct block *other;

    if (!made)
        return NULL;
    *made = (struct block) {.number = number};
    do {
        other = find(number);
        if (other) {
            free(made);
            return other;
        }
        made->next = head;
    } while (
        !__atomic_compare_exchange_n(list, &head, made, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
    __atomic_add_fetch(&order, 1, __ATOMIC_ACQ_REL);
    return made;
}

static inline struct block *find_or_make(uint64_t address)
{
    struct block *block = find(address / BLOCKS_BYTES);

    return likely(block) ? block : make(address / BLOCKS_BYTES);
}

static inline void lock(struct block *block)
{
    spin_lock(&block->locked, LOCK_BLOCK);
}

static inline void unlock(struct block *block)
{
    spin_unlock(&block->locked, LOCK_BLOCK);
}

/* Lock held: 1 if the block was empty. */
static inline int count_one(struct block *block)
{
    return block->count++ == 0;
}

int blocks_enter(uint64_t address)
{
    struct block *block = find_or_make(address);
    int first;

    if (unlikely(!block))
        return -ENOMEM;
    lock(block);
    first = count_one(block);
    unlock(block);
    return first;
}

int blocks_leave(uint64_t address)
{
    struct block *block = find(address / BLOCKS_BYTES);
    int last;

    if (!block)
        return 0;
    lock(block);
    last = block->count && --block->count == 0;
    if (last)
        block->held = 0;
    unlock(block);
    return last;
}

static inline unsigned unit_of(uint64_t address)
{
    return (unsigned) (address % BLOCKS_BYTES / UNIT);
}

static inline int is_set(const struct maps *maps, unsigned unit)
{
    uint64_t word = __atomic_load_n(&maps->words[unit / IN_WORD].first, __ATOMIC_RELAXED);

    return (word >> unit % IN_WORD) & 1;
}

static inline void set_bit(uint64_t *word, unsigned unit, int on)
{
    uint64_t bit = UINT64_C(1) << unit % IN_WORD;

    __atomic_store_n(word, on ? *word | bit : *word & ~bit, __ATOMIC_RELAXED);
}

/* The last unit of the allocation that begins in *unit*. If others overlap it, as its free was not
 * seen, it may be theirs. */
static inline unsigned last_of(const struct maps *maps, unsigned unit)
{
    unsigned index = unit / IN_WORD;
    uint64_t word = maps->words[index].last & ~UINT64_C(0) << unit % IN_WORD;

    while (unlikely(!word)) {
        if (++index == UNITS / IN_WORD)
            return unit;
        word = maps->words[index].last;
    }
    return index * IN_WORD + (unsigned) __builtin_ctzll(word);
}

/* Field by field: a copy of a whole structure would wait for the stores of its fields. */
static inline void describe(const struct block *block, unsigned unit, unsigned last,
                            struct allocation *found)
{
    found->address = block->number * BLOCKS_BYTES + (uint64_t) unit * UNIT;
    found->bytes = (uint64_t) (last - unit + 1) * UNIT;
    found->owner = block->owner;
    found->life = block->life;
    found->link = 0;
    found->device = block->device & 0x7f;
    found->in_block = 1;
    found->kind = ALLOCATION_LINEAR;
    found->recorded = 1;
}

static inline void set(struct block *block, unsigned unit, uint64_t bytes)
{
    unsigned last = unit + (unsigned) (bytes / UNIT) - 1;

    set_bit(&block->maps->words[unit / IN_WORD].first, unit, 1);
    set_bit(&block->maps->words[last / IN_WORD].last, last, 1);
    block->recorded++;
}

static inline void clear(struct block *block, unsigned unit, unsigned last)
{
    set_bit(&block->maps->words[unit / IN_WORD].first, unit, 0);
    set_bit(&block->maps->words[last / IN_WORD].last, last, 0);
    block->recorded--;
}

static inline int can_record(uint64_t address, uint64_t bytes)
{
    return address % UNIT == 0 && bytes % UNIT == 0 && bytes - 1 < MOST * UNIT &&
           address % BLOCKS_BYTES + bytes <= BLOCKS_BYTES;
}

/* Lock held: make the owner that of the block, or see that it is. */
static inline int hold(struct block *block, const struct blocks_owner *owner)
{
    if (unlikely(!block->maps)) {
        struct maps *maps = calloc(1, sizeof(*maps));

        if (!maps)
            return 0;
        __atomic_store_n(&block->maps, maps, __ATOMIC_RELEASE);
    }
    if (unlikely(!block->held)) {
        block->owner = owner->owner;
        block->life = owner->life;
        block->device = owner->device;
        block->held = 1;
    }
    return block->owner == owner->owner && block->life == owner->life &&
           block->device == owner->device;
}

enum blocks_recorded blocks_record(uint64_t address, uint64_t bytes,
                                   const struct blocks_owner *owner, int *mixed)
{
    unsigned unit = unit_of(address);
    struct block *block = likely(can_record(address, bytes)) ? find_or_make(address) : NULL;
    enum blocks_recorded result = BLOCKS_NOT_RECORDED;

    if (unlikely(!block))
        return result;
    lock(block);
    if (likely(hold(block, owner))) {
        *mixed = block->count != block->recorded || !block->count;
        result = BLOCKS_SHARED;
        /* The driver reuses an address only after a free: here, one that was not seen. */
        if (unlikely(is_set(block->maps, unit)))
            clear(block, unit, last_of(block->maps, unit));
        else if (count_one(block))
            result = BLOCKS_FIRST;
        set(block, unit, bytes);
    }
    unlock(block);
    return result;
}

/* The block in which an allocation is recorded that begins at *address*, locked; or NULL. A thread
 * that frees an address received it earlier, and so sees the bit set for it. */
static inline struct block *lock_block_of(uint64_t address)
{
    struct block *block = find(address / BLOCKS_BYTES);
    const struct maps *maps = block ? __atomic_load_n(&block->maps, __ATOMIC_ACQUIRE) : NULL;

    if (!maps || address % UNIT || !is_set(maps, unit_of(address)))
        return NULL;
    lock(block);
    if (likely(is_set(maps, unit_of(address))))
        return block;
    unlock(block);
    return NULL;
}

int blocks_take(uint64_t address, struct allocation *taken)
{
    struct block *block = lock_block_of(address);
    unsigned unit = unit_of(address), last;

    if (unlikely(!block))
        return 0;
    last = last_of(block->maps, unit);
    describe(block, unit, last, taken);
    clear(block, unit, last);
    unlock(block);
    return 1;
}

int blocks_find(uint64_t address, struct allocation *found)
{
    struct block *block = lock_block_of(address);
    unsigned unit = unit_of(address);

    if (!block)
        return 0;
    describe(block, unit, last_of(block->maps, unit), found);
    unlock(block);
    return 1;
}

int blocks_take_back(const struct allocation *allocation)
{
    struct block *block = lock_block_of(allocation->address);
    unsigned unit = unit_of(allocation->address);
    int found;

    if (!block)
        return 0;
    found = block->owner == allocation->owner && block->life == allocation->life;
    if (found)
        clear(block, unit, last_of(block->maps, unit));
    unlock(block);
    return found;
}

void blocks_put_back(const struct allocation *taken)
{
    struct block *block = find(taken->address / BLOCKS_BYTES);
    unsigned unit = unit_of(taken->address);

    lock(block);
    if (likely(!is_set(block->maps, unit)))
        set(block, unit, taken->bytes);
    else
        block->count--; /* its address was given to another meanwhile */
    unlock(block);
}

int blocks_move(uint64_t address, int (*move)(struct allocation *, void *), void *argument)
{
    struct block *block = lock_block_of(address);
    unsigned unit = unit_of(address), last;
    struct allocation found;
    int moved;

    if (!block)
        return 0;
    last = last_of(block->maps, unit);
    describe(block, unit, last, &found);
    found.recorded = 0;
    moved = move(&found, argument);
    if (moved)
        clear(block, unit, last);
    unlock(block);
    return moved;
}

static void take_all(struct block *block, void (*gone)(const struct allocation *, void *),
                     void *argument)
{
    for (unsigned unit = 0; unit < UNITS && block->recorded; unit++) {
        struct allocation taken;
        unsigned last;

        if (!is_set(block->maps, unit))
            continue;
        last = last_of(block->maps, unit);
        describe(block, unit, last, &taken);
        clear(block, unit, last);
        gone(&taken, argument);
    }
}

void blocks_take_owned(const void *owner, void (*gone)(const struct allocation *, void *),
                       void *argument)
{
    /* Either this sees a block that is just being made, or its maker sees that the owner has ended.
     */
    __atomic_add_fetch(&order, 1, __ATOMIC_ACQ_REL);
    for (unsigned list = 0; list < LISTS; list++) {
        struct block *block = __atomic_load_n(&lists[list], __ATOMIC_ACQUIRE);

        for (; block; block = block->next) {
            lock(block);
            if (block->recorded && block->owner == owner)
                take_all(block, gone, argument);
            unlock(block);
        }
    }
}

void blocks_after_fork(void)
{
    memset(lists, 0, sizeof(lists));
}
