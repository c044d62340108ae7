/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c -- the table of what launches cost, and how it learns; see costs.h. */
#include "costs.h"

#include <stdlib.h>

#include "clock.h"

enum {
    PERIOD = 160,      /* launches, on average, of which one is measured, */
    PERIOD_MOST = 640, /* of short ones, which come more often */
    UNCERTAIN_PERIOD = 4,
    UNDER_WAY = 8,     /* measurements of a short one: more say nothing new */
    DOUBT_FACTOR = 4,  /* a measurement that many times the cost is not believed at once */
    DOUBTS_ENOUGH = 3, /* but if so many come in a row */
    MEAN_OF = 16,      /* measurements */
    MEAN_LEAST = 4,    /* of them, that say anything */
    MEAN_FAR = 3,      /* times the cost: then that is wrong */
    EQUALS_ENOUGH = 2, /* measurements alone that are certain */
    VARIES_ENOUGH = 3, /* but if so often they were not, the mean of MEAN_OF is, */
    SAME_FOR_LONG = 8, /* until so many are */
    LEASTS_ENOUGH = 4, /* or short ones beside others, */
    OTHERS_ENOUGH = 8, /* of so many; else it must be measured alone */
    STEPS_DOWN = 8,
    FIRST_SAMPLES = 2, /* measured in any case */
    GUESSES = 2        /* launches under way that paid a guess */
};

#define PERIOD_NS       INT64_C(2000000) /* what they take together, then */
#define EXACT_NS        INT64_C(1000)    /* events are no more exact */
#define COST_MINIMUM_NS INT64_C(500)
#define UNKNOWN_NS      INT64_C(4000000) /* what costs a launch that is not seen to finish */
#define COST_MAXIMUM_NS INT64_C(3600000000000)
#define QUIET_MOST_NS   INT64_C(120000000) /* what takes longer is as long as its mean */
#define SLICE_NS        INT64_C(1000000)   /* for which a device lets one process have its turn */

__thread uint32_t costs_lot;

static int64_t smaller(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static int64_t larger(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

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

static void become_uncertain(struct cost *entry)
{
    entry->alones = entry->equals = entry->leasts = entry->means = entry->others = 0;
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
    become_uncertain(entry);
    __atomic_store_n(&entry->measured, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

static int is_varying(const struct cost *entry)
{
    return entry->varies >= VARIES_ENOUGH;
}

static int is_certain(const struct cost *entry)
{
    if (is_varying(entry))
        return entry->alones >= MEAN_OF;
    return entry->equals >= EQUALS_ENOUGH || entry->leasts >= LEASTS_ENOUGH;
}

/* Not in step with a loop of the application. */
static int32_t next_period(const struct cost *entry)
{
    static uint32_t seed = 1;
    int32_t mean = (int32_t) within(PERIOD_NS / entry->cost_ns, PERIOD, PERIOD_MOST);
    uint32_t value;

    if (entry->cost_ns >= COSTS_LONG_NS || entry->samples < 16 || entry->doubts)
        return 1;
    if (!is_certain(entry))
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

static int is_about(int64_t value, int64_t known)
{
    return llabs(value - known) <= larger(known / 32, EXACT_NS);
}

/* Measured alone. Twice the same is certain; and if it is never the same, the mean of many is. */
static int64_t took_alone(struct cost *entry, int64_t took)
{
    int64_t cost = entry->cost_ns;

    if (entry->alones && is_about(took, entry->alone_ns)) {
        entry->alone_ns += (took - entry->alone_ns) / 4;
        if (++entry->equals >= SAME_FOR_LONG)
            entry->varies = 0;
    } else {
        entry->varies += entry->alones != 0;
        entry->equals = 1;
        entry->alone_ns = took;
    }
    if (!entry->alones)
        cost = took;
    else if (is_varying(entry))
        cost += (took - cost) / smaller(entry->alones + 1, MEAN_OF);
    else
        cost = entry->alone_ns;
    entry->alones++;
    entry->means = entry->leasts = 0;
    return cost;
}

/* Several short times that are the same have no turn of others in them. */
static void note_least(struct cost *entry, int64_t elapsed_ns)
{
    entry->others++;
    if (elapsed_ns >= SLICE_NS / 2)
        return;
    if (entry->leasts && is_about(elapsed_ns, entry->cost_ns))
        entry->leasts++;
    else if (!entry->leasts || elapsed_ns < entry->cost_ns)
        entry->leasts = 1;
}

int costs_are_certain(struct costs *costs, uint64_t key)
{
    const struct cost *entry = find(costs, key);

    return entry && is_certain(entry);
}

int costs_want_quiet(struct costs *costs, uint64_t key)
{
    const struct cost *entry = find(costs, key);

    return entry && !is_certain(entry) && entry->cost_ns < QUIET_MOST_NS &&
           (!entry->leasts || entry->others >= OTHERS_ENOUGH);
}

void costs_distrust(struct costs *costs)
{
    for (unsigned i = 0; i < ARRAY_SIZE(costs->entries); i++) {
        struct cost *entry = &costs->entries[i];

        become_uncertain(entry);
        entry->doubts = DOUBTS_ENOUGH - 1;
        entry->doubted = 0;
        entry->period = 0; /* those that were not measured yet are paid by now */
        __atomic_store_n(&entry->left, 0, __ATOMIC_RELAXED);
    }
}

/* What it took without what it may have waited for others of its own process. */
static int64_t least_of(const struct costs_sample *sample)
{
    return sample->elapsed_ns - within(sample->queued_ns, 0, sample->elapsed_ns);
}

static int64_t note_mean(struct cost *entry, const struct costs_sample *sample)
{
    int64_t own = (int64_t) ((double) least_of(sample) * sample->rate / CLOCK_WHOLE);

    entry->means += entry->means < MEAN_OF;
    entry->mean_ns += (own - entry->mean_ns) / entry->means;
    return entry->mean_ns;
}

/* As long as so many others can make it, turn by turn, and not much longer than their clock says
 * on average. */
static int can_be(const struct cost *entry, const struct costs_sample *sample)
{
    int64_t most = sample->sharers * (entry->cost_ns + 2 * SLICE_NS);

    if (!is_varying(entry) && sample->elapsed_ns < entry->cost_ns &&
        !is_about(sample->elapsed_ns, entry->cost_ns))
        return 0;
    return least_of(sample) <= most &&
           (entry->means < MEAN_OF ||
            entry->mean_ns <= entry->cost_ns + entry->cost_ns / 2 + 5 * SLICE_NS / 2);
}

/* Measured beside others. What is certain stays, unless that cannot be. Else a short launch has
 * mostly their turns in it, or nothing of them, so the least that was seen counts unless the mean
 * is far from that; for a long one it is the mean. It never took longer than was measured. */
static int64_t took_beside_others(struct cost *entry, const struct costs_sample *sample)
{
    int64_t known = entry->cost_ns;
    int64_t mean = note_mean(entry, sample);

    if (is_certain(entry) && can_be(entry, sample))
        return entry->alones ? known : smaller(known, sample->elapsed_ns);
    if (is_certain(entry)) {
        entry->varies += sample->elapsed_ns < known;
        become_uncertain(entry);
        mean = note_mean(entry, sample);
    }
    note_least(entry, sample->elapsed_ns);
    if (!entry->samples)
        return smaller(larger(mean, known), sample->elapsed_ns);
    if (known < SLICE_NS / 2 && (entry->means < MEAN_LEAST || mean <= MEAN_FAR * known))
        return smaller(known, sample->elapsed_ns);
    return smaller(mean, sample->elapsed_ns);
}

/* In several streams, what is known can be as true as what was measured. Only where each launch is
 * measured it is known what was before it. What is certain becomes less step by step, since what
 * all of them took was measured by it. */
static int64_t measured_alone(const struct cost *entry, const struct costs_sample *sample)
{
    int64_t known = entry->cost_ns;
    int64_t least = known < COSTS_LONG_NS ? 0 : least_of(sample);

    if ((!sample->crowded && sample->queued_ns <= 0) || !entry->samples)
        return sample->elapsed_ns;
    if (is_certain(entry) && sample->elapsed_ns < known)
        return known - (known - sample->elapsed_ns) / STEPS_DOWN;
    return within(known, least, sample->elapsed_ns);
}

/* There, what is certain stays, as all of them together are measured by it. */
static int says_nothing(const struct cost *entry, const struct costs_sample *sample)
{
    return sample->crowded && is_certain(entry) && sample->elapsed_ns >= entry->cost_ns / 2 &&
           (entry->cost_ns < COSTS_LONG_NS || least_of(sample) <= entry->cost_ns * 2);
}

/* A short launch seems to have taken long: its process may have been interrupted between the
 * events, or the device. */
static int is_doubtful(struct cost *entry, int64_t took_ns, uint32_t stands_for)
{
    if (entry->samples < FIRST_SAMPLES || entry->cost_ns >= COSTS_LONG_NS ||
        took_ns <= DOUBT_FACTOR * entry->cost_ns) {
        entry->doubts = entry->doubted = 0;
        return 0;
    }
    entry->doubts++;
    entry->doubted += stands_for;
    entry->period -= larger(entry->left, 0); /* the next one is measured */
    entry->left = 0;
    return entry->doubts < DOUBTS_ENOUGH;
}

int64_t costs_learn(struct costs *costs, uint64_t key, const struct costs_sample *sample)
{
    struct cost *entry = find(costs, key);
    uint32_t stands_for = sample->stands_for & ~COSTS_GUESSED;
    int64_t took, cost;

    if (sample->stands_for & COSTS_GUESSED) {
        count_down(&costs->guessed);
        if (entry)
            count_down(&entry->guessed);
    } else if (entry) {
        count_down(&entry->measured);
    }
    if (!entry || sample->elapsed_ns < 0)
        return 0;
    if (says_nothing(entry, sample))
        return 0;
    took = sample->alone ? measured_alone(entry, sample) : took_beside_others(entry, sample);
    took = within(took, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    if (is_doubtful(entry, took, stands_for))
        return 0;
    if (entry->doubts) {
        stands_for = entry->doubted;
        become_uncertain(entry);
    }
    cost = sample->alone ? took_alone(entry, took) : took;
    __atomic_store_n(&entry->cost_ns, cost, __ATOMIC_RELAXED);
    entry->doubts = entry->doubted = 0;
    entry->samples++;
    return (sample->alone ? (int64_t) stands_for : 1) * (took - sample->paid_ns);
}

void costs_forget(struct costs *costs, uint64_t key)
{
    struct cost *entry = find(costs, key);

    if (entry)
        __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
}
