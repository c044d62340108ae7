/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.c -- the sums of one container, exact under concurrency and kill -9; see ledger.h. */
#include "ledger.h"
#include "compiler.h"
#include "spin.h"

#include <errno.h>

#define PATIENCE_NS UINT64_C(1000000) /* how long an undecided charge waits for others */

/* The thread of this process that insists on its refused charge; others stand back. */
static int insisting;

struct sum {
    uint64_t bytes;
    unsigned pending;  /* undecided charges, all slots */
    int lower_pending; /* whether a slot below ours has one */
};

static unsigned count_slots(const struct usage_file *usage)
{
    uint32_t end = __atomic_load_n(&usage->high_water, __ATOMIC_SEQ_CST);

    return likely(end <= REGION_SLOTS) ? end : REGION_SLOTS;
}

static struct sum sum_words(const struct usage_file *usage, unsigned device, unsigned own)
{
    const uint64_t *words = usage->charged[device];
    unsigned end = count_slots(usage);
    struct sum sum = {.bytes = __atomic_load_n(&usage->orphaned[device], __ATOMIC_SEQ_CST)};

    for (unsigned slot = 0; slot < end; slot++) {
        uint64_t word = __atomic_load_n(&words[slot], __ATOMIC_SEQ_CST);
        unsigned pending = (unsigned) (word >> LEDGER_PENDING_SHIFT);

        sum.bytes += word & LEDGER_BYTES;
        sum.pending += pending;
        if (unlikely(pending) && slot < own)
            sum.lower_pending = 1;
    }
    return sum;
}

/* The words as they are, bytes and undecided charges in one: enough to know that a charge fits. */
static uint64_t sum_whole_words(const struct usage_file *usage, unsigned device)
{
    const uint64_t *words = usage->charged[device];
    unsigned end = count_slots(usage);
    uint64_t sum = __atomic_load_n(&usage->orphaned[device], __ATOMIC_SEQ_CST);

    for (unsigned slot = 0; slot < end; slot++)
        sum += __atomic_load_n(&words[slot], __ATOMIC_SEQ_CST);
    return sum;
}

static uint64_t limit_of(const struct ledger *ledger, unsigned device)
{
    return __atomic_load_n(&ledger->limit[device], __ATOMIC_RELAXED);
}

/* Write this slot's word. Nobody else does while we live, so what we wrote last is known without
 * reading it from a cache line that other slots' owners write to: after a plain store this thread
 * goes on before the line has come. The lock is this process's own. */
static inline void change_word(struct region *region, unsigned device, uint64_t change, int order)
{
    uint64_t word = region->words[device] += change;

    __atomic_store_n(&region->usage->charged[device][region->slot], word, order);
}

static void add_to_word(struct ledger *ledger, unsigned device, uint64_t change)
{
    struct region *region = ledger->region;

    spin_lock(&region->words_locked);
    change_word(region, device, change, __ATOMIC_SEQ_CST);
    spin_unlock(&region->words_locked);
}

/* Add the charge, undecided; what all words say then decides. */
static struct sum propose(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    add_to_word(ledger, device, LEDGER_PENDING + bytes);
    return sum_words(ledger->region->usage, device, (unsigned) ledger->region->slot);
}

static void admit(struct ledger *ledger, unsigned device)
{
    add_to_word(ledger, device, -LEDGER_PENDING);
}

static void withdraw(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    add_to_word(ledger, device, -(LEDGER_PENDING + bytes));
}

static int refuse(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    struct usage_file *usage = ledger->region->usage;

    withdraw(ledger, device, bytes);
    __atomic_add_fetch(&usage->refused[device], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&usage->slots[ledger->region->slot].refused, 1, __ATOMIC_RELAXED);
    return -ENOMEM;
}

/* The charge is in the word and over the limit, but others are undecided: perhaps they go. */
static int contend(struct ledger *ledger, unsigned device, uint64_t bytes, struct sum sum)
{
    struct usage_file *usage = ledger->region->usage;
    unsigned slot = (unsigned) ledger->region->slot;
    uint64_t deadline = clock_now_ns(CLOCK_MONOTONIC) + PATIENCE_NS;
    int standing = 0; /* whether this thread is the one that insists */
    int result = 0;

    while (sum.bytes > limit_of(ledger, device) && sum.pending > 1) {
        int patient = clock_now_ns(CLOCK_MONOTONIC) < deadline;

        if (!standing)
            standing = !__atomic_exchange_n(&insisting, 1, __ATOMIC_ACQUIRE);
        if (patient && !(standing && !sum.lower_pending)) {
            withdraw(ledger, device, bytes);
            for (int i = 0; i < 64; i++)
                cpu_relax();
            sum = propose(ledger, device, bytes);
        } else {
            cpu_relax(); /* the others stand back, or are decided without us */
            sum = sum_words(usage, device, slot);
        }
        if (!patient) /* that was the last look: this thread may have slept before it */
            break;
    }
    if (sum.bytes <= limit_of(ledger, device))
        admit(ledger, device);
    else
        result = refuse(ledger, device, bytes);
    if (standing)
        __atomic_store_n(&insisting, 0, __ATOMIC_RELEASE);
    return result;
}

int ledger_charge(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    struct region *region = ledger->region;
    struct sum sum;

    if (unlikely(bytes > limit_of(ledger, device))) {
        struct usage_file *usage = ledger->region->usage;

        __atomic_add_fetch(&usage->refused[device], 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&usage->slots[ledger->region->slot].refused, 1, __ATOMIC_RELAXED);
        return -ENOMEM;
    }
    /* As propose() and admit(), under one lock. Until the store that proposes is seen by all, no
     * word may be read; that it was admitted others may learn later. */
    spin_lock(&region->words_locked);
    change_word(region, device, LEDGER_PENDING + bytes, __ATOMIC_SEQ_CST);
    if (likely(sum_whole_words(region->usage, device) - LEDGER_PENDING <=
               limit_of(ledger, device))) {
        change_word(region, device, -LEDGER_PENDING, __ATOMIC_RELEASE);
        spin_unlock(&region->words_locked);
        return 0;
    }
    spin_unlock(&region->words_locked);
    sum = sum_words(region->usage, device, (unsigned) region->slot);
    if (sum.bytes <= limit_of(ledger, device)) { /* others are undecided, and fit too */
        admit(ledger, device);
        return 0;
    }
    /* About to refuse: the dead hold nothing. Our own charge stands undecided meanwhile. */
    if (region_reap_before_refusal(ledger->region))
        sum = sum_words(ledger->region->usage, device, (unsigned) ledger->region->slot);
    if (sum.bytes > limit_of(ledger, device) && sum.pending <= 1)
        return refuse(ledger, device, bytes);
    return contend(ledger, device, bytes, sum);
}

void ledger_refund(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    struct region *region = ledger->region;

    spin_lock(&region->words_locked);
    change_word(region, device, -bytes, __ATOMIC_RELEASE);
    spin_unlock(&region->words_locked);
}

uint64_t ledger_used(struct ledger *ledger, unsigned device)
{
    region_reap(ledger->region);
    return sum_words(ledger->region->usage, device, 0).bytes;
}
