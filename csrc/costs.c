/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c -- the table of what launches cost, and how it learns; see costs.h. */
#include "costs.h"

#include <stdlib.h>

#include "clock.h"

enum {
    PERIOD = 160,      /* launches, on average, of which one is measured */
    DOUBT_FACTOR = 4,  /* a measurement that many times the cost is not believed at once */
    DOUBTS_ENOUGH = 3, /* but if so many come in a row */
    MEAN_OF = 16,      /* measurements beside others */
    MANY_TURNS = 8,
    MEAN_LEAST = 4,    /* of them, that say anything */
    MEAN_FAR = 3,      /* times the cost: then that is wrong */
    ALONES_ENOUGH = 4, /* measurements alone that agree */
    FIRST_SAMPLES = 2, /* measured in any case */
    GUESSES = 2        /* launches under way that paid a guess */
};

#define COST_MINIMUM_NS INT64_C(500)
#define UNKNOWN_NS      INT64_C(4000000) /* what costs a launch that is not seen to finish */
#define COST_MAXIMUM_NS INT64_C(3600000000000)
#define SLICE_NS        INT64_C(1000000) /* for which a device lets one process have its turn */

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

/* The one of the two places that is free, or else the less known one. */
static struct cost *make(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = &costs->entries[key >> (64 - COSTS_BITS)];
    struct cost *sibling = &costs->entries[(key >> (64 - COSTS_BITS)) ^ 1];

    if (entry->key && (!sibling->key || sibling->samples < entry->samples))
        entry = sibling;
    __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
    entry->cost_ns = within(guess_ns, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    entry->alone_ns = entry->mean_ns = 0;
    entry->left = entry->period = 0;
    entry->samples = entry->doubts = entry->doubted = entry->guessed = entry->alones = 0;
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

/* Not in step with a loop of the application. */
static int32_t next_period(const struct cost *entry)
{
    static uint32_t seed = 1;
    uint32_t value;

    if (entry->cost_ns >= COSTS_LONG_NS || entry->samples < 16 || entry->doubts)
        return 1;
    value = __atomic_load_n(&seed, __ATOMIC_RELAXED) * 1664525u + 1013904223u;
    __atomic_store_n(&seed, value, __ATOMIC_RELAXED);
    return PERIOD / 2 + (int32_t) (value >> 16) % PERIOD;
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
    if (left <= 0) {
        quote.stands_for = entry->period > 0 ? (uint32_t) entry->period : 1;
        entry->period = left = next_period(entry);
    }
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

/* The time of others in a measurement that began with their turns, and in which all had their
 * turns one after the other. */
static int64_t others_turns(int64_t elapsed_ns, int64_t others_ns)
{
    int64_t round = others_ns + SLICE_NS;

    return elapsed_ns / round * others_ns + smaller(elapsed_ns % round, others_ns);
}

/* What of a measurement is its own at most, if another was there all the time: then between two
 * turns of its own there was one of that. */
static int64_t most_own(const struct costs_sample *sample)
{
    if (sample->rate > CLOCK_WHOLE / 2 + CLOCK_WHOLE / 32)
        return sample->elapsed_ns;
    return sample->elapsed_ns - (sample->elapsed_ns + SLICE_NS - 1) / (2 * SLICE_NS) * SLICE_NS;
}

/* What of a measurement was probably its own: its fair part, if it followed upon work before it.
 * What began on an idle stream has perhaps waited for its first turn in it, so it only says what
 * cannot be. */
static int64_t own_part(const struct costs_sample *sample, int64_t known)
{
    int64_t others = (CLOCK_WHOLE - CLOCK_WHOLE / 20 + sample->rate) / sample->rate - 1;
    int64_t least =
        sample->elapsed_ns - others_turns(sample->elapsed_ns, larger(others, 1) * SLICE_NS);

    if (!sample->queued && sample->elapsed_ns >= MANY_TURNS * SLICE_NS)
        return sample->elapsed_ns -
               others_turns(sample->elapsed_ns,
                            SLICE_NS * (CLOCK_WHOLE - sample->rate) / sample->rate);
    if (!sample->queued)
        return known ? within(known, least, larger(least, most_own(sample))) : least;
    return sample->elapsed_ns / CLOCK_WHOLE * sample->rate +
           sample->elapsed_ns % CLOCK_WHOLE * sample->rate / CLOCK_WHOLE;
}

/* What a launch took that was measured beside others. A short one has mostly their turns in it, or
 * nothing of them, so the least that was seen counts unless the mean is far from that; for a long
 * one it is the mean. */
static int64_t took_beside_others(struct cost *entry, const struct costs_sample *sample)
{
    int64_t own = own_part(sample, entry->mean_ns);
    int64_t known = entry->cost_ns;
    int64_t weight = smaller(entry->samples + 1, MEAN_OF);

    entry->mean_ns += (own - entry->mean_ns) / weight;
    if (sample->elapsed_ns < SLICE_NS / 2 && (!entry->samples || sample->elapsed_ns < known))
        return sample->elapsed_ns;
    if (!entry->samples)
        return larger(own, known);
    if (known < SLICE_NS / 2)
        return weight >= MEAN_LEAST && entry->mean_ns > MEAN_FAR * known ? entry->mean_ns : known;
    if (entry->alones >= ALONES_ENOUGH && known <= sample->elapsed_ns && known >= own / 2)
        return known;
    return entry->mean_ns;
}

/* Measured alone often enough, and always the same: that is certain, whatever is measured beside
 * others. */
static void note_alone(struct cost *entry, int64_t took)
{
    int64_t difference = took - entry->alone_ns;

    if (llabs(difference) <= entry->alone_ns / 16) {
        entry->alones++;
        entry->alone_ns += difference / 4;
    } else {
        entry->alones = 1;
        entry->alone_ns = took;
    }
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
    uint32_t stands_for = sample->stands_for & ~COSTS_GUESSED;
    int64_t took;

    if (sample->stands_for & COSTS_GUESSED) {
        count_down(&costs->guessed);
        if (entry)
            count_down(&entry->guessed);
    }
    if (!entry || sample->elapsed_ns < 0)
        return 0;
    if (sample->elapsed_ns < entry->alone_ns - entry->alone_ns / 16)
        entry->alones = 0;
    took = alone ? sample->elapsed_ns : took_beside_others(entry, sample);
    if (entry->alones >= ALONES_ENOUGH)
        took = larger(took, smaller(entry->alone_ns / 2, sample->elapsed_ns));
    took = within(took, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    if (is_doubtful(entry, took, stands_for))
        return 0;
    if (entry->doubts) {
        stands_for = entry->doubted;
        entry->doubts = 0;
        entry->cost_ns = took;
    } else if (!alone || entry->samples < FIRST_SAMPLES || took >= COSTS_LONG_NS) {
        entry->cost_ns = took;
    } else {
        __atomic_store_n(&entry->cost_ns, entry->cost_ns + (took - entry->cost_ns) / 4,
                         __ATOMIC_RELAXED);
    }
    if (alone) {
        entry->mean_ns = took;
        note_alone(entry, took);
    }
    entry->samples++;
    return (alone ? (int64_t) stands_for : 1) * (took - sample->paid_ns);
}

void costs_forget(struct costs *costs, uint64_t key)
{
    struct cost *entry = find(costs, key);

    if (entry)
        __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
}
