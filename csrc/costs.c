/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c -- the table of what launches cost, and which of them are measured; see costs.h. */
#include "costs.h"

#include "cost.h"
#include "number.h"

enum {
    PERIOD = 160,      /* launches, on average, of which one is measured, */
    PERIOD_MOST = 640, /* of short ones, which come more often */
    UNCERTAIN_PERIOD = 4,
    FAR_LESS = 2,  /* by so many times */
    UNDER_WAY = 8, /* measurements of a short one: more say nothing new */
    GUESSES = 2    /* launches under way that paid a guess */
};

#define PERIOD_NS  INT64_C(2000000) /* what they take together, then */
#define UNKNOWN_NS INT64_C(4000000) /* what costs a launch that is not seen to finish */

__thread uint32_t costs_lot;

static struct cost *find(struct costs *costs, uint64_t key)
{
    struct cost *entry = &costs->entries[key >> (64 - COSTS_BITS)];
    struct cost *sibling = &costs->entries[(key >> (64 - COSTS_BITS)) ^ 1];

    if (__atomic_load_n(&entry->key, __ATOMIC_ACQUIRE) == key)
        return entry;
    return __atomic_load_n(&sibling->key, __ATOMIC_ACQUIRE) == key ? sibling : NULL;
}

/* The one of the two places that is free, or else the less known one. */
static struct cost *make(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = &costs->entries[key >> (64 - COSTS_BITS)];
    struct cost *sibling = &costs->entries[(key >> (64 - COSTS_BITS)) ^ 1];

    if (entry->key && (!sibling->key || sibling->samples < entry->samples))
        entry = sibling;
    __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
    entry->cost_ns = within(guess_ns, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    entry->mean_ns = 0;
    entry->left = entry->period = 0;
    entry->samples = entry->doubts = entry->doubted = entry->guessed = 0;
    entry->varies = 0;
    cost_become_uncertain(entry);
    __atomic_store_n(&entry->measured, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

/* Not in step with a loop of the application. */
static int32_t next_period(const struct cost *entry)
{
    static uint32_t seed = 1;
    int32_t mean = (int32_t) within(PERIOD_NS / entry->cost_ns, PERIOD, PERIOD_MOST);
    uint32_t value;

    if (entry->cost_ns >= COSTS_LONG_NS || entry->samples < 16 || entry->doubts)
        return 1;
    if (!cost_is_certain(entry))
        return UNCERTAIN_PERIOD;
    value = __atomic_load_n(&seed, __ATOMIC_RELAXED) * 1664525u + 1013904223u;
    __atomic_store_n(&seed, value, __ATOMIC_RELAXED);
    return mean / 2 + (int32_t) (value >> 16) % mean;
}

static void count_down(uint32_t *count)
{
    uint32_t seen = __atomic_load_n(count, __ATOMIC_RELAXED);

    while (seen && !__atomic_compare_exchange_n(count, &seen, seen - 1, 1, __ATOMIC_RELAXED,
                                                __ATOMIC_RELAXED))
        ;
}

/* One launch of each key that was never seen finished, and few of different ones. */
static struct costs_quote guess(struct costs *costs, struct cost *entry)
{
    if (__atomic_load_n(&entry->guessed, __ATOMIC_RELAXED) ||
        __atomic_load_n(&costs->guessed, __ATOMIC_RELAXED) >= GUESSES)
        return (struct costs_quote) {.stands_for = COSTS_CROWDED};
    __atomic_add_fetch(&entry->guessed, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&costs->guessed, 1, __ATOMIC_RELAXED);
    return (struct costs_quote) {entry->cost_ns, COSTS_GUESSED | 1};
}

/* Enough of its like are being measured, and not long. */
static int is_under_way(const struct cost *entry)
{
    return entry->cost_ns < COSTS_LONG_NS &&
           __atomic_load_n(&entry->measured, __ATOMIC_RELAXED) >= UNDER_WAY;
}

/* The measurement speaks for all launches since the one before it: the period, and as many as
 * *left* is below 0. Those up to the next are counted down anew. */
static int32_t measure(struct cost *entry, int32_t left, struct costs_quote *quote)
{
    int32_t past = entry->period > 0 ? entry->period - left : 1;

    if (is_under_way(entry)) {
        entry->period = past + UNCERTAIN_PERIOD;
        return UNCERTAIN_PERIOD;
    }
    __atomic_add_fetch(&entry->measured, 1, __ATOMIC_RELAXED);
    quote->stands_for = (uint32_t) past;
    return entry->period = next_period(entry);
}

struct costs_quote costs_look(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = find(costs, key);
    struct costs_quote quote = {0};
    int32_t left;

    if (!entry)
        entry = make(costs, key, guess_ns);
    if (!entry->samples)
        return guess(costs, entry);
    quote.cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
    left = __atomic_load_n(&entry->left, __ATOMIC_RELAXED) - 1;
    if (left <= 0)
        left = measure(entry, left, &quote);
    __atomic_store_n(&entry->left, left, __ATOMIC_RELAXED);
    return quote;
}

struct costs_quote costs_ask_anyway(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = find(costs, key);

    if (!entry)
        entry = make(costs, key, guess_ns);
    if (!entry->samples) {
        entry->samples = 1;
        entry->cost_ns = within(entry->cost_ns, UNKNOWN_NS, COST_MAXIMUM_NS);
    }
    __atomic_store_n(&costs->guessed, 0, __ATOMIC_RELAXED);
    return costs_look(costs, key, guess_ns);
}

struct costs_known costs_know(struct costs *costs, uint64_t key)
{
    const struct cost *entry = find(costs, key);

    if (!entry || !entry->samples)
        return (struct costs_known) {0};
    return (struct costs_known) {entry->cost_ns, cost_is_certain(entry)};
}

int costs_know_better(const struct costs_known *before, const struct costs_known *now)
{
    return (now->certain && !before->certain) || now->cost_ns < before->cost_ns / FAR_LESS;
}

int costs_want_quiet(struct costs *costs, uint64_t key)
{
    const struct cost *entry = find(costs, key);

    return entry && cost_wants_quiet(entry);
}

void costs_distrust(struct costs *costs)
{
    for (unsigned i = 0; i < ARRAY_SIZE(costs->entries); i++) {
        struct cost *entry = &costs->entries[i];

        cost_distrust(entry);
        entry->period = 0; /* those that were not measured yet are paid by now */
        __atomic_store_n(&entry->left, 0, __ATOMIC_RELAXED);
    }
}

int64_t costs_learn(struct costs *costs, uint64_t key, const struct costs_sample *sample)
{
    struct cost *entry = find(costs, key);

    if (sample->stands_for & COSTS_GUESSED) {
        count_down(&costs->guessed);
        if (entry)
            count_down(&entry->guessed);
    } else if (entry) {
        count_down(&entry->measured);
    }
    return entry && sample->elapsed_ns >= 0 ? cost_learn(entry, sample) : 0;
}

int64_t costs_settle(struct costs *costs, uint64_t key)
{
    struct cost *entry = find(costs, key);

    return entry ? cost_settle(entry) : 0;
}

void costs_forget(struct costs *costs, uint64_t key)
{
    struct cost *entry = find(costs, key);

    if (entry)
        __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
}
