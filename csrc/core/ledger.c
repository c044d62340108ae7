/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.c -- one container's memory sums, exact under concurrency and kill -9; see ledger.h. */
#include "core/ledger.h"
#include "core/compiler.h"
#include "core/slots.h"
#include "core/spin.h"

#include <errno.h>

#define TIMEOUT_NS UINT64_C(1000000) /* how long an undecided charge waits for others */

/* The highest limit, half a petabyte, and the bits of a word that show that it is half full, of
 * bytes or of undecided charges: then it takes one more charge, but none that stays undecided. */
#define LEDGER_MAXIMUM (LEDGER_BLOCK >> 2)
#define WORD_CROWDED   ((UINT64_C(1) << 63) | (LEDGER_BLOCK >> 1))

/* A thread of this process insists on its refused charge; the others stand back. */
static int insisting;

struct sum {
    uint64_t bytes;
    unsigned pending;  /* undecided charges, all slots */
    int lower_pending; /* whether a slot below ours has one */
};

/* How many slots a sum covers; our own is among them, whatever a damaged file says. */
static unsigned count_slots(const struct region *region)
{
    uint32_t end = __atomic_load_n(&region->usage->high_water, __ATOMIC_SEQ_CST);

    if (unlikely((int64_t) end <= region->slot))
        end = (uint32_t) region->slot + 1;
    return likely(end <= REGION_SLOTS) ? end : REGION_SLOTS;
}

static uint64_t at_most(uint64_t value, uint64_t maximum)
{
    return value < maximum ? value : maximum;
}

/* The bytes that no slot's word includes; bounded, so that no invalid value makes a sum wrap. */
static uint64_t beside_words(const struct region *region, unsigned device)
{
    uint64_t extra = __atomic_load_n(&region->extra_total[device], __ATOMIC_RELAXED);
    uint64_t orphaned = __atomic_load_n(&region->usage->orphaned[device], __ATOMIC_RELAXED);

    return at_most(extra, LEDGER_BYTES) + at_most(orphaned, LEDGER_BYTES);
}

static uint32_t with_state(uint32_t block, uint32_t state)
{
    return (block & ~(uint32_t) BLOCK_STATE) | state;
}

/* The state of a slot's block, for a word with the flag; NULL if it has none. */
static uint32_t *block_of(const struct region *region, unsigned device, unsigned slot)
{
    return region->blocks && slot < BLOCK_SLOTS ? &region->blocks[slot][device] : NULL;
}

/* The bytes of a word that count. The state is read after the word. If the owner has written the
 * word since, then either it charged bytes that we miss, and its sum has seen our charge; or it
 * refunded some, and we count too many. A block that was taken counts for no process until its
 * owner charges one again, by a sum. */
static uint64_t bytes_of(const struct region *region, unsigned device, unsigned slot, uint64_t word)
{
    uint64_t bytes = word & LEDGER_BYTES;
    const uint32_t *block = unlikely(word & LEDGER_BLOCK) ? block_of(region, device, slot) : NULL;

    if (unlikely(block) && (__atomic_load_n(block, __ATOMIC_SEQ_CST) & BLOCK_STATE) == BLOCK_TAKEN)
        bytes -= at_most(bytes, BLOCK_BYTES);
    return bytes;
}

/* Take the block that a slot has reserved and does not use, if any. */
static void take_block(const struct region *region, unsigned device, unsigned slot, uint64_t word)
{
    uint32_t *block = unlikely(word & LEDGER_BLOCK) ? block_of(region, device, slot) : NULL;
    uint32_t state = likely(!block) ? 0 : __atomic_load_n(block, __ATOMIC_SEQ_CST);

    /* If its owner was faster, it has used the block, or set the flag once more. */
    while (unlikely((state & BLOCK_STATE) == BLOCK_CACHED) &&
           !__atomic_compare_exchange_n(block, &state, with_state(state, BLOCK_TAKEN), 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

/* The sum that a refusal needs: all reserved blocks are taken first. */
static struct sum sum_words(const struct region *region, unsigned device, unsigned own)
{
    const uint64_t *words = region->usage->charged[device];
    unsigned end = count_slots(region);
    struct sum sum = {.bytes = beside_words(region, device)};

    for (unsigned slot = 0; slot < end; slot++) {
        uint64_t word = __atomic_load_n(&words[slot], __ATOMIC_SEQ_CST);
        unsigned pending = (unsigned) (word >> LEDGER_PENDING_SHIFT);

        take_block(region, device, slot, word);
        sum.bytes += bytes_of(region, device, slot, word);
        sum.pending += pending;
        if (unlikely(pending) && slot < own)
            sum.lower_pending = 1;
    }
    return sum;
}

/* The bytes alone, decided or not, and with reserved blocks: enough to know that a charge fits. */
static uint64_t sum_bytes(const struct region *region, unsigned device)
{
    const uint64_t *words = region->usage->charged[device];
    unsigned end = count_slots(region);
    uint64_t sum = beside_words(region, device);

    for (unsigned slot = 0; slot < end; slot++)
        sum += bytes_of(region, device, slot, __atomic_load_n(&words[slot], __ATOMIC_SEQ_CST));
    return sum;
}

static uint64_t limit_of(const struct ledger *ledger, unsigned device)
{
    return at_most(__atomic_load_n(&ledger->limit[device], __ATOMIC_RELAXED), LEDGER_MAXIMUM);
}

/* Write this slot's word. No other process writes it while we live, so our last value is known
 * without reading it from a cache line that other slots' owners write to: after a plain store this
 * thread goes on before the line has arrived. The lock is local to this process. */
static inline void change_word(struct region *region, unsigned device, uint64_t change, int order)
{
    uint64_t word = region->words[device] += change;

    __atomic_store_n(&region->usage->charged[device][region->slot], word, order);
}

static void add_to_word(struct ledger *ledger, unsigned device, uint64_t change)
{
    struct region *region = ledger->region;

    spin_lock(&region->words_locked, LOCK_LEDGER);
    change_word(region, device, change, __ATOMIC_SEQ_CST);
    spin_unlock(&region->words_locked, LOCK_LEDGER);
}

/* Add the charge, undecided; the sum of all words then decides. 0 if so many threads have undecided
 * charges already that the word could not hold this one. */
static int propose(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    struct region *region = ledger->region;
    int crowded;

    spin_lock(&region->words_locked, LOCK_LEDGER);
    crowded = (region->words[device] & WORD_CROWDED) != 0;
    if (!crowded)
        change_word(region, device, LEDGER_PENDING + bytes, __ATOMIC_SEQ_CST);
    spin_unlock(&region->words_locked, LOCK_LEDGER);
    return !crowded;
}

static void admit(struct ledger *ledger, unsigned device)
{
    add_to_word(ledger, device, -LEDGER_PENDING);
}

static void withdraw(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    add_to_word(ledger, device, -(LEDGER_PENDING + bytes));
}

static int refuse(struct ledger *ledger, unsigned device)
{
    struct usage_file *usage = ledger->region->usage;

    __atomic_add_fetch(&usage->refused[device], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&usage->slots[ledger->region->slot].refused, 1, __ATOMIC_RELAXED);
    return -ENOMEM;
}

static int decide(struct ledger *ledger, unsigned device, uint64_t bytes, uint64_t limit,
                  struct sum sum)
{
    if (sum.bytes <= limit) {
        admit(ledger, device);
        return 0;
    }
    withdraw(ledger, device, bytes);
    return refuse(ledger, device);
}

/* The charge is in the word and over the limit, but others are undecided: they may be withdrawn. */
static int contend(struct ledger *ledger, unsigned device, uint64_t bytes, uint64_t limit,
                   struct sum sum)
{
    const struct region *region = ledger->region;
    uint64_t deadline = clock_now_ns(CLOCK_MONOTONIC) + TIMEOUT_NS;
    int standing = 0; /* whether this thread is the one that insists */
    int proposed = 1;

    while (sum.bytes > limit && sum.pending > 1) {
        int patient = clock_now_ns(CLOCK_MONOTONIC) < deadline;

        if (!standing)
            standing = !__atomic_exchange_n(&insisting, 1, __ATOMIC_ACQUIRE);
        if (patient && !(standing && !sum.lower_pending)) {
            withdraw(ledger, device, bytes);
            for (int i = 0; i < 64; i++)
                cpu_relax();
            proposed = propose(ledger, device, bytes);
        } else {
            cpu_relax(); /* the others stand back, or are decided without us */
        }
        sum = sum_words(region, device, (unsigned) region->slot);
        if (!patient || !proposed) /* that was the last sum: this thread may have slept before */
            break;
    }
    if (standing)
        __atomic_store_n(&insisting, 0, __ATOMIC_RELEASE);
    if (!proposed)
        return refuse(ledger, device);
    return decide(ledger, device, bytes, limit, sum);
}

/* The following functions are called with the words locked; only they and sums of other processes
 * change the state of our block, and the latter only from BLOCK_CACHED to BLOCK_TAKEN. */

/* Clear the flag, and refund the block unless it is in use. */
static void drop_block(struct region *region, unsigned device, uint32_t *block)
{
    uint32_t state = __atomic_load_n(block, __ATOMIC_RELAXED);
    uint64_t change = LEDGER_BLOCK;

    if ((state & BLOCK_STATE) != BLOCK_USED) {
        /* It counts no longer, and is not refunded twice. */
        __atomic_store_n(block, with_state(state, BLOCK_TAKEN), __ATOMIC_SEQ_CST);
        change += BLOCK_BYTES;
    }
    change_word(region, device, -change, __ATOMIC_RELEASE);
}

/* Charge our reserved block: 1 if there is one. It must have been within limits that are still in
 * force; and while the node side measures more than was charged, each charge is summed. */
static int reuse_block(struct ledger *ledger, unsigned device)
{
    struct region *region = ledger->region;
    uint32_t *block = block_of(region, device, (unsigned) region->slot);
    uint32_t state = __atomic_load_n(block, __ATOMIC_RELAXED);

    if (likely((state & BLOCK_STATE) == BLOCK_CACHED &&
               ledger->block_generation[device] == region_generation(region->quota) &&
               !__atomic_load_n(&region->extra_total[device], __ATOMIC_RELAXED) &&
               __atomic_compare_exchange_n(block, &state, with_state(state, BLOCK_USED), 0,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)))
        return 1;
    if ((state & BLOCK_STATE) != BLOCK_USED)
        drop_block(region, device, block);
    return 0;
}

/* Reserve the first block, if it is within the limit: 1 if it need not be refunded. */
static OUT_OF_LINE int begin_caching(struct ledger *ledger, unsigned device, uint32_t *block)
{
    struct region *region = ledger->region;
    uint32_t state = __atomic_load_n(block, __ATOMIC_RELAXED);
    uint64_t generation = __atomic_load_n(&ledger->generation, __ATOMIC_ACQUIRE);

    if (region_generation(region->quota) != generation ||
        __atomic_load_n(&region->extra_total[device], __ATOMIC_RELAXED) ||
        sum_bytes(region, device) > limit_of(ledger, device))
        return 0;
    ledger->block_generation[device] = generation;
    __atomic_store_n(block, with_state(state + BLOCK_STATE + 1, BLOCK_CACHED), __ATOMIC_RELEASE);
    change_word(region, device, LEDGER_BLOCK, __ATOMIC_RELEASE);
    return 1;
}

/* Reserve a block that is being freed: 1 if it need not be refunded. */
static int cache_block(struct ledger *ledger, unsigned device)
{
    struct region *region = ledger->region;
    uint32_t *block = block_of(region, device, (unsigned) region->slot);
    uint32_t state;

    if (unlikely(!block))
        return 0;
    state = __atomic_load_n(block, __ATOMIC_RELAXED);
    if (likely(region->words[device] & LEDGER_BLOCK)) {
        if (likely((state & BLOCK_STATE) == BLOCK_USED)) {
            __atomic_store_n(block, with_state(state, BLOCK_CACHED), __ATOMIC_RELEASE);
            return 1;
        }
        return 0;
    }
    /* A process that is alone writes to no line of others. */
    return likely(count_slots(region) == 1) ? 0 : begin_caching(ledger, device, block);
}

/* The proposed charge exceeds the limit, by a sum that may include reserved blocks and memory of
 * dead processes. The words are locked. */
static OUT_OF_LINE int charge_again(struct ledger *ledger, unsigned device, uint64_t bytes,
                                    uint64_t limit)
{
    struct region *region = ledger->region;
    int crowded = (region->words[device] & WORD_CROWDED) != 0;
    struct sum sum;

    if (crowded)
        change_word(region, device, -(LEDGER_PENDING + bytes), __ATOMIC_RELEASE);
    spin_unlock(&region->words_locked, LOCK_LEDGER);
    if (crowded)
        return refuse(ledger, device);
    /* About to refuse: reap first, since the dead hold nothing. Our charge stays undecided. */
    slots_reap_before_refusal(region);
    sum = sum_words(region, device, (unsigned) region->slot);
    if (sum.pending <= 1)
        return decide(ledger, device, bytes, limit, sum);
    return contend(ledger, device, bytes, limit, sum);
}

static inline int charge(struct ledger *ledger, unsigned device, uint64_t bytes, uint64_t limit)
{
    struct region *region = ledger->region;

    if (unlikely(bytes > limit))
        return refuse(ledger, device);
    /* Like propose() and admit(), under one lock. No word may be read until all processes see the
     * store that proposes; they may see later that it was admitted. */
    spin_lock(&region->words_locked, LOCK_LEDGER);
    if (bytes == BLOCK_BYTES && (region->words[device] & LEDGER_BLOCK) &&
        reuse_block(ledger, device)) {
        spin_unlock(&region->words_locked, LOCK_LEDGER);
        return 0;
    }
    change_word(region, device, LEDGER_PENDING + bytes, __ATOMIC_SEQ_CST);
    if (likely(sum_bytes(region, device) <= limit)) {
        change_word(region, device, -LEDGER_PENDING, __ATOMIC_RELEASE);
        spin_unlock(&region->words_locked, LOCK_LEDGER);
        return 0;
    }
    return charge_again(ledger, device, bytes, limit);
}

/* Read the limit of *device* valid at *generation* or later; 0 if the quota holds no valid limits.
 * A read during which two more limits were written may find neither copy complete, and is repeated.
 */
static int read_limit(const struct quota_file *quota, unsigned device, uint64_t *generation,
                      uint64_t *limit)
{
    struct quota_limits limits;

    do {
        *generation = region_generation(quota);
        if (region_limits(quota, &limits) && device < limits.device_count) {
            *limit = at_most(limits.devices[device].vmemory, LEDGER_MAXIMUM);
            return 1;
        }
    } while (region_generation(quota) != *generation);
    return 0;
}

/* The limits may have changed since *generation*, in which the charge had this *result*: decide it
 * again by the new ones. */
static OUT_OF_LINE int charge_by_new_limits(struct ledger *ledger, unsigned device, uint64_t bytes,
                                            uint64_t generation, int result)
{
    const struct quota_file *quota = ledger->region->quota;
    uint64_t limit;

    while (region_generation(quota) != generation &&
           read_limit(quota, device, &generation, &limit)) {
        if (result == 0)
            ledger_refund(ledger, device, bytes);
        result = charge(ledger, device, bytes, limit);
    }
    return result;
}

int ledger_charge(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    const struct quota_file *quota = ledger->region->quota;
    uint64_t generation = __atomic_load_n(&ledger->generation, __ATOMIC_ACQUIRE);
    uint64_t limit = limit_of(ledger, device);
    int result = charge(ledger, device, bytes, limit);

    /* The word was stored before the generation is read here; the node side writes a generation
     * before it reads the words. So either it sees the charge, or we see that the limits changed. A
     * charge that the old limit refused may fit the new one. */
    if (likely(region_generation(quota) == generation))
        return result;
    return charge_by_new_limits(ledger, device, bytes, generation, result);
}

void ledger_refund(struct ledger *ledger, unsigned device, uint64_t bytes)
{
    struct region *region = ledger->region;

    spin_lock(&region->words_locked, LOCK_LEDGER);
    if (bytes != BLOCK_BYTES || !cache_block(ledger, device))
        change_word(region, device, -bytes, __ATOMIC_RELEASE);
    spin_unlock(&region->words_locked, LOCK_LEDGER);
}

uint64_t ledger_used(struct ledger *ledger, unsigned device)
{
    const struct region *region = ledger->region;
    unsigned end = count_slots(region);
    uint64_t sum;

    slots_reap(ledger->region);
    sum = beside_words(region, device);
    for (unsigned slot = 0; slot < end; slot++)
        sum += region_held(region, device, slot);
    return sum;
}
