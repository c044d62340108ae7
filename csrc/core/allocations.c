/* SPDX-License-Identifier: Apache-2.0 */
/* allocations.c -- open addressing with linear probing in shards; see allocations.h. */
#include "core/allocations.h"
#include "core/blocks.h"
#include "core/compiler.h"
#include "core/lock.h"
#include "core/spin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS        16
#define FIRST_ENTRIES 64 /* of a shard; a power of two, doubled when three quarters are full */

struct shard {
    int locked;
    uint32_t count;
    uint32_t mask;
    struct allocation *entries; /* address 0: free */
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

/* Addresses are multiples of 16 or more; the multiplication spreads them over the upper bits. */
static uint64_t hash_of(uint64_t address)
{
    return address * UINT64_C(0x9e3779b97f4a7c15);
}

/* Under the lock; but allocations_take() reads the count without it. */
static void change_count(struct shard *shard, int change)
{
    __atomic_store_n(&shard->count, shard->count + (uint32_t) change, __ATOMIC_RELAXED);
}

/* The holder may be off the CPU. So sleep now and then: a real-time thread that only yields does
 * not let a holder of lower priority run. */
static OUT_OF_LINE void wait_for(struct shard *shard)
{
    for (unsigned tries = 1; __atomic_exchange_n(&shard->locked, 1, __ATOMIC_ACQUIRE); tries++)
        if (tries % 64)
            sched_yield();
        else
            spin_nap();
}

static struct shard *lock_shard(uint64_t hash)
{
    struct shard *shard = &shards[hash >> 60];

    lock_check(LOCK_ALLOCATIONS, &shard->locked);
    if (unlikely(__atomic_exchange_n(&shard->locked, 1, __ATOMIC_ACQUIRE)))
        wait_for(shard);
    lock_note_taken(LOCK_ALLOCATIONS, &shard->locked);
    return shard;
}

static void unlock_shard(struct shard *shard)
{
    spin_unlock(&shard->locked, LOCK_ALLOCATIONS);
}

static uint32_t home_of(const struct shard *shard, uint64_t hash)
{
    return (uint32_t) (hash >> 24) & shard->mask;
}

/* The place of an entry, or the free place where it would go. */
static struct allocation *place_of(const struct shard *shard, uint64_t hash,
                                   enum allocation_kind kind, uint64_t address)
{
    uint32_t index = home_of(shard, hash);

    while (shard->entries[index].address &&
           (shard->entries[index].address != address || shard->entries[index].kind != kind))
        index = (index + 1) & shard->mask;
    return &shard->entries[index];
}

static int grow(struct shard *shard)
{
    struct shard larger = {
        .mask = shard->entries ? shard->mask * 2 + 1 : FIRST_ENTRIES - 1,
    };

    larger.entries = calloc((size_t) larger.mask + 1, sizeof(*larger.entries));
    if (!larger.entries)
        return -ENOMEM;
    for (uint32_t i = 0; shard->entries && i <= shard->mask; i++) {
        const struct allocation *entry = &shard->entries[i];

        if (entry->address)
            *place_of(&larger, hash_of(entry->address), entry->kind, entry->address) = *entry;
    }
    free(shard->entries);
    shard->entries = larger.entries;
    shard->mask = larger.mask;
    return 0;
}

/* Free a place, and move up what probing would no longer find past it. */
static void remove_place(struct shard *shard, struct allocation *place)
{
    uint32_t hole = (uint32_t) (place - shard->entries);
    uint32_t index = hole;

    for (;;) {
        const struct allocation *entry;
        uint32_t home;

        index = (index + 1) & shard->mask;
        entry = &shard->entries[index];
        if (!entry->address)
            break;
        home = home_of(shard, hash_of(entry->address));
        if (((index - home) & shard->mask) >= ((index - hole) & shard->mask)) {
            shard->entries[hole] = *entry;
            hole = index;
        }
    }
    shard->entries[hole].address = 0;
    change_count(shard, -1);
}

/* The entry of *address*; NULL if there is none. */
static struct allocation *entry_of(const struct shard *shard, uint64_t hash,
                                   enum allocation_kind kind, uint64_t address)
{
    struct allocation *place = shard->entries ? place_of(shard, hash, kind, address) : NULL;

    return place && place->address ? place : NULL;
}

/* The place of an entry, or a free one for it; NULL without memory. */
static struct allocation *make_place(struct shard *shard, uint64_t hash,
                                     const struct allocation *allocation)
{
    if (unlikely(!shard->entries || shard->count >= shard->mask / 4 * 3) && grow(shard) != 0)
        return NULL;
    return place_of(shard, hash, allocation->kind, allocation->address);
}

int allocations_insert(const struct allocation *allocation, struct allocation *replaced)
{
    uint64_t hash = hash_of(allocation->address);
    struct shard *shard = lock_shard(hash);
    struct allocation *place = make_place(shard, hash, allocation);
    int result = -ENOMEM;

    if (likely(place)) {
        result = place->address != 0;
        if (likely(!result))
            change_count(shard, 1);
        else
            *replaced = *place;
        *place = *allocation;
    }
    unlock_shard(shard);
    if (result == 0 && allocation->kind == ALLOCATION_LINEAR)
        return blocks_take(allocation->address, replaced);
    return result;
}

int allocations_insert_or_change(const struct allocation *allocation,
                                 int (*change)(struct allocation *, void *), void *argument)
{
    uint64_t hash = hash_of(allocation->address);
    struct shard *shard = lock_shard(hash);
    struct allocation *place = make_place(shard, hash, allocation);

    if (likely(place && !place->address)) {
        change_count(shard, 1);
        *place = *allocation;
    } else if (place && !change(place, argument)) {
        remove_place(shard, place);
    }
    unlock_shard(shard);
    return place ? 0 : -ENOMEM;
}

static int take(enum allocation_kind kind, uint64_t address, struct allocation *taken)
{
    uint64_t hash = hash_of(address);
    struct shard *shard;
    struct allocation *entry;

    /* A thread that frees an address received it earlier, and so sees the entry inserted for it. */
    if (!address || !__atomic_load_n(&shards[hash >> 60].count, __ATOMIC_RELAXED))
        return 0;
    shard = lock_shard(hash);
    entry = entry_of(shard, hash, kind, address);
    if (likely(entry)) {
        *taken = *entry;
        remove_place(shard, entry);
    }
    unlock_shard(shard);
    return entry != NULL;
}

int allocations_take(enum allocation_kind kind, uint64_t address, struct allocation *taken)
{
    return (kind == ALLOCATION_LINEAR && blocks_take(address, taken)) || take(kind, address, taken);
}

int allocations_take_unrecorded(uint64_t address, struct allocation *taken)
{
    return take(ALLOCATION_LINEAR, address, taken);
}

int allocations_find(enum allocation_kind kind, uint64_t address, struct allocation *found)
{
    uint64_t hash = hash_of(address);
    struct shard *shard = lock_shard(hash);
    const struct allocation *entry = entry_of(shard, hash, kind, address);

    if (entry)
        *found = *entry;
    unlock_shard(shard);
    return entry || (kind == ALLOCATION_LINEAR && blocks_find(address, found));
}

/* An entry that *address* lies in, among all of a shard. */
static const struct allocation *search(const struct shard *shard, enum allocation_kind kind,
                                       uint64_t address)
{
    for (uint32_t index = 0; shard->entries && index <= shard->mask; index++) {
        const struct allocation *entry = &shard->entries[index];

        if (entry->address && entry->kind == kind && address >= entry->address &&
            address - entry->address < entry->bytes)
            return entry;
    }
    return NULL;
}

int allocations_find_around(enum allocation_kind kind, uint64_t address, struct allocation *found)
{
    int there = allocations_find(kind, address, found);

    for (unsigned i = 0; i < SHARDS && !there; i++) {
        struct shard *shard = lock_shard((uint64_t) i << 60);
        const struct allocation *entry = search(shard, kind, address);

        if (entry) {
            *found = *entry;
            there = 1;
        }
        unlock_shard(shard);
    }
    return there;
}

int allocations_change(enum allocation_kind kind, uint64_t address,
                       int (*change)(struct allocation *, void *), void *argument)
{
    uint64_t hash = hash_of(address);
    struct shard *shard = lock_shard(hash);
    struct allocation *entry = entry_of(shard, hash, kind, address);

    if (entry && !change(entry, argument))
        remove_place(shard, entry);
    unlock_shard(shard);
    return entry != NULL;
}

/* Under the lock of its block: insert what gets the link into the table instead. */
static int move_with_link(struct allocation *allocation, void *link)
{
    uint64_t hash = hash_of(allocation->address);
    struct shard *shard = lock_shard(hash);
    struct allocation *place = make_place(shard, hash, allocation);

    allocation->link = *(uint16_t *) link;
    if (place) {
        change_count(shard, !place->address);
        *place = *allocation;
    }
    unlock_shard(shard);
    return place != NULL;
}

int allocations_set_link(enum allocation_kind kind, uint64_t address, uint16_t link)
{
    uint64_t hash = hash_of(address);
    struct shard *shard;
    struct allocation *entry;
    int unlinked;

    if (kind == ALLOCATION_LINEAR && blocks_move(address, move_with_link, &link))
        return 1;
    shard = lock_shard(hash);
    entry = entry_of(shard, hash, kind, address);
    unlinked = entry && !entry->link;
    if (unlinked)
        entry->link = link;
    unlock_shard(shard);
    return unlinked;
}

int allocations_take_back(const struct allocation *allocation)
{
    uint64_t hash = hash_of(allocation->address);
    struct shard *shard;
    struct allocation *entry;
    int found;

    if (allocation->kind == ALLOCATION_LINEAR && blocks_take_back(allocation))
        return 1;
    shard = lock_shard(hash);
    entry = entry_of(shard, hash, allocation->kind, allocation->address);
    found = entry && entry->owner == allocation->owner && entry->life == allocation->life;
    if (found)
        remove_place(shard, entry);
    unlock_shard(shard);
    return found;
}

void allocations_take_owned(const void *owner, void (*gone)(const struct allocation *, void *),
                            void *argument)
{
    blocks_take_owned(owner, gone, argument);
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = lock_shard((uint64_t) i << 60);

        for (uint32_t index = 0; shard->entries && index <= shard->mask;) {
            struct allocation *entry = &shard->entries[index];

            if (entry->address && entry->owner == owner) {
                gone(entry, argument);
                remove_place(shard, entry); /* another may have moved here: check it, too */
            } else {
                index++;
            }
        }
        unlock_shard(shard);
    }
}

void allocations_after_fork(void)
{
    /* A thread that does not exist here may have held a lock; the entries belong to the parent. */
    memset(shards, 0, sizeof(shards));
}
