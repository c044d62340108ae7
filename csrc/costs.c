/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c -- the table of what launches cost, and how it learns; see costs.h. */
#include "costs.h"

#include "clock.h"

enum {
    PERIOD = 64,        /* launches, on average, of which one is measured */
    DOUBT_FACTOR = 4,   /* a measurement that many times the cost is not believed at once */
    DOUBTS_ENOUGH = 3,  /* but if so many come in a row */
    FIRST_SAMPLES = 2,  /* measured in any case */
    UNMEASURED_STEP = 4 /* the price of a launch whose like are all still under way grows by */
};

#define COST_MINIMUM_NS   INT64_C(500)
#define COST_MAXIMUM_NS   INT64_C(3600000000000)
#define UNMEASURED_MAX_NS INT64_C(8000000)
#define SLICE_NS          INT64_C(1000000) /* for which a device lets one process have its turn */

static int64_t within(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

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
    entry->alone_ns = 0;
    entry->left = entry->period = 0;
    entry->samples = entry->doubts = entry->doubted = entry->unmeasured = 0;
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

/* Not in step with a loop of the application. */
static int32_t next_period(const struct cost *entry)
{
    static uint32_t seed = 1;
    uint32_t value;

    if (entry->cost_ns >= COSTS_LONG_NS || entry->samples < FIRST_SAMPLES || entry->doubts)
        return 1;
    value = __atomic_load_n(&seed, __ATOMIC_RELAXED) * 1664525u + 1013904223u;
    __atomic_store_n(&seed, value, __ATOMIC_RELAXED);
    return PERIOD / 2 + (int32_t) (value >> 16) % PERIOD;
}

/* Launches whose like were never seen finished cost more and more, so that few are under way. */
static int64_t unmeasured_price(struct cost *entry)
{
    int64_t price = entry->cost_ns;
    uint32_t before = entry->unmeasured++;

    for (; before > 1 && price < UNMEASURED_MAX_NS; before--)
        price *= UNMEASURED_STEP;
    return price < UNMEASURED_MAX_NS || price == entry->cost_ns ? price : UNMEASURED_MAX_NS;
}

struct costs_quote costs_look(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = find(costs, key);
    struct costs_quote quote = {0};
    int32_t left;

    if (!entry)
        entry = make(costs, key, guess_ns);
    quote.cost_ns = __atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED);
    if (!entry->samples) {
        quote.cost_ns = unmeasured_price(entry);
        quote.stands_for = 1;
        return quote;
    }
    left = __atomic_load_n(&entry->left, __ATOMIC_RELAXED) - 1;
    if (left <= 0) {
        quote.stands_for = entry->period > 0 ? (uint32_t) entry->period : 1;
        entry->period = left = next_period(entry);
    }
    __atomic_store_n(&entry->left, left, __ATOMIC_RELAXED);
    return quote;
}

/* The bounds between which it took GPU time: *sharers* took turns of SLICE_NS in the meantime, and
 * one more or less of the others' may have been in it. */
static void bounds(const struct costs_sample *sample, int64_t *low, int64_t *high)
{
    double sharers = (double) CLOCK_WHOLE / sample->rate;
    double others = (sharers - 1) * SLICE_NS;
    double turns = (double) sample->elapsed_ns / (sharers * SLICE_NS);
    int64_t whole = (int64_t) turns;

    *high = sample->elapsed_ns - (int64_t) ((double) whole * others);
    if ((double) whole < turns)
        whole++;
    *low = sample->elapsed_ns - (int64_t) ((double) whole * others);
    *low = within(*low, 0, *high);
}

/* What a launch took that was measured beside others: the cost as it is known, as long as that
 * can be. */
static int64_t took_beside_others(const struct cost *entry, const struct costs_sample *sample)
{
    int64_t fair = sample->elapsed_ns / CLOCK_WHOLE * sample->rate +
                   sample->elapsed_ns % CLOCK_WHOLE * sample->rate / CLOCK_WHOLE;
    int64_t low, high, took;

    bounds(sample, &low, &high);
    if (entry->samples)
        took = within(entry->cost_ns, low, high);
    else if (fair >= 4 * SLICE_NS)
        took = within(fair, low, high);
    else
        took = high < SLICE_NS / 2 ? high : within(entry->cost_ns, low, high);
    return entry->alone_ns && took < entry->alone_ns / 2 ? entry->alone_ns / 2 : took;
}

/* A short launch seems to have taken long: its process may have been interrupted between the
 * events, or the device. */
static int is_doubtful(struct cost *entry, int64_t took_ns, uint32_t stands_for)
{
    if (entry->samples < FIRST_SAMPLES || entry->cost_ns >= COSTS_LONG_NS ||
        took_ns <= DOUBT_FACTOR * entry->cost_ns) {
        entry->doubts = 0;
        return 0;
    }
    if (!entry->doubts++)
        entry->doubted = 0;
    entry->doubted += stands_for;
    entry->left = 0;
    return entry->doubts < DOUBTS_ENOUGH;
}

int64_t costs_learn(struct costs *costs, uint64_t key, const struct costs_sample *sample)
{
    struct cost *entry = find(costs, key);
    int alone = sample->rate >= CLOCK_ALONE;
    int64_t took, stands_for = sample->stands_for;

    if (!entry || sample->elapsed_ns < 0)
        return 0;
    took = alone ? sample->elapsed_ns : took_beside_others(entry, sample);
    took = within(took, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    if (is_doubtful(entry, took, sample->stands_for))
        return 0;
    if (entry->doubts) {
        stands_for = entry->doubted;
        entry->doubts = 0;
        entry->cost_ns = took;
    } else if (entry->samples < FIRST_SAMPLES || took >= COSTS_LONG_NS) {
        entry->cost_ns = took;
    } else {
        __atomic_store_n(&entry->cost_ns, entry->cost_ns + (took - entry->cost_ns) / 4,
                         __ATOMIC_RELAXED);
    }
    if (alone)
        entry->alone_ns = took;
    entry->samples++;
    entry->unmeasured = 0;
    return stands_for * (took - sample->paid_ns);
}

void costs_forget(struct costs *costs, uint64_t key)
{
    struct cost *entry = find(costs, key);

    if (entry)
        __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
}
