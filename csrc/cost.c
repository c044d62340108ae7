/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c -- what measurements say of the cost of one key; see cost.h. */
#include "cost.h"

#include <stdlib.h>

#include "clock.h"
#include "number.h"

enum {
    DOUBT_FACTOR = 4,  /* a measurement that many times the cost is not believed at once */
    DOUBTS_ENOUGH = 3, /* but if so many come in a row */
    MEAN_OF = 16,      /* measurements */
    MEAN_LEAST = 4,    /* of them, that say anything */
    MEAN_FAR = 3,      /* times the cost: then that is wrong */
    EQUALS_ENOUGH = 2, /* measurements alone that are certain */
    VARIES_ENOUGH = 3, /* but if so often they were not, the mean of MEAN_OF is, */
    SAME_FOR_LONG = 8, /* until so many are */
    LEASTS_ENOUGH = 4, /* or short ones beside others, */
    MEAN_LASTS = 256,  /* measurements beside others, then it is measured alone again */
    OTHERS_ENOUGH = 8, /* of so many; else it must be measured alone */
    STEPS_DOWN = 8,
    FIRST_SAMPLES = 2 /* measured in any case */
};

#define EXACT_NS      INT64_C(1000)      /* events are no more exact */
#define QUIET_MOST_NS INT64_C(120000000) /* what takes longer is as long as its mean */
#define SLICE_NS      INT64_C(1000000)   /* for which a device lets one process have its turn */
#define SHORT_NS      (SLICE_NS * 3 / 4) /* mostly done within one */
#define ESTIMATED_NS  INT64_C(400000000) /* of estimates that are remembered */

static int is_varying(const struct cost *entry)
{
    return entry->varies >= VARIES_ENOUGH;
}

int cost_is_certain(const struct cost *entry)
{
    if (is_varying(entry))
        return entry->alones >= MEAN_OF;
    return entry->equals >= EQUALS_ENOUGH || entry->leasts >= LEASTS_ENOUGH;
}

void cost_become_uncertain(struct cost *entry)
{
    entry->alones = entry->equals = entry->leasts = entry->means = entry->others = 0;
    entry->estimates = 0;
    entry->estimated_ns = 0;
}

/* What others said too little of can have made it seem to vary. */
static int is_old_mean(const struct cost *entry)
{
    return is_varying(entry) && entry->others >= MEAN_LASTS;
}

int cost_wants_quiet(const struct cost *entry)
{
    return (!cost_is_certain(entry) || is_old_mean(entry)) && entry->cost_ns < QUIET_MOST_NS &&
           (!entry->leasts || entry->others >= OTHERS_ENOUGH);
}

void cost_distrust(struct cost *entry)
{
    cost_become_uncertain(entry);
    entry->doubts = DOUBTS_ENOUGH - 1;
    entry->doubted = 0;
}

static int is_about(int64_t value, int64_t known)
{
    return llabs(value - known) <= larger(known / 32, EXACT_NS);
}

/* Measured alone. Twice the same is certain; and if it is never the same, the mean of many is. */
static int64_t took_alone(struct cost *entry, int64_t took)
{
    int64_t cost = entry->cost_ns;

    if (!is_about(took, cost))
        entry->leasts = 0;
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
    if (++entry->alones % MEAN_OF == 0)
        entry->others = 0;
    entry->means = 0;
    return cost;
}

/* Several short times that are the same have no turn of others in them. Whether this one is the
 * first, or less than those before it. */
static int is_new_least(struct cost *entry, int64_t elapsed_ns)
{
    if (elapsed_ns >= SHORT_NS)
        return 0;
    if (entry->leasts && is_about(elapsed_ns, entry->cost_ns)) {
        entry->leasts++;
        return 0;
    }
    if (entry->leasts && elapsed_ns > entry->cost_ns)
        return 0;
    entry->leasts = 1;
    return 1;
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

    entry->others++;
    if (cost_is_certain(entry) && can_be(entry, sample))
        return entry->alones ? known : smaller(known, sample->elapsed_ns);
    if (cost_is_certain(entry)) {
        entry->varies += sample->elapsed_ns < known;
        cost_become_uncertain(entry);
        mean = note_mean(entry, sample);
    }
    if (is_new_least(entry, sample->elapsed_ns))
        return sample->elapsed_ns;
    if (!entry->samples)
        return smaller(larger(mean, known), sample->elapsed_ns);
    if (known < SHORT_NS && (entry->means < MEAN_LEAST || mean <= MEAN_FAR * known))
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
    if (cost_is_certain(entry) && sample->elapsed_ns < known)
        return known - (known - sample->elapsed_ns) / STEPS_DOWN;
    return within(known, least, sample->elapsed_ns);
}

/* There, what is certain stays, as all of them together are measured by it. */
static int says_nothing(const struct cost *entry, const struct costs_sample *sample)
{
    return sample->crowded && cost_is_certain(entry) && sample->elapsed_ns >= entry->cost_ns / 2 &&
           (entry->cost_ns < COSTS_LONG_NS || least_of(sample) <= entry->cost_ns * 2);
}

/* In several streams, what was paid is settled by what all of them took. */
static void note_estimate(struct cost *entry, const struct costs_sample *sample,
                          uint32_t stands_for, int64_t took_ns)
{
    if (sample->crowded)
        return;
    entry->estimates += stands_for;
    entry->estimated_ns +=
        sample->alone ? stands_for * took_ns : took_ns + (stands_for - 1) * sample->paid_ns;
    if (entry->estimated_ns > ESTIMATED_NS) {
        entry->estimates /= 2;
        entry->estimated_ns /= 2;
    }
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

int64_t cost_learn(struct cost *entry, const struct costs_sample *sample)
{
    uint32_t stands_for = sample->stands_for & ~COSTS_GUESSED;
    int64_t took, cost;

    if (says_nothing(entry, sample)) {
        if (!sample->alone)
            note_mean(entry, sample);
        return 0;
    }
    took = sample->alone ? measured_alone(entry, sample) : took_beside_others(entry, sample);
    took = within(took, COST_MINIMUM_NS, COST_MAXIMUM_NS);
    if (is_doubtful(entry, took, stands_for))
        return 0;
    if (entry->doubts) {
        stands_for = entry->doubted;
        cost_become_uncertain(entry);
    }
    cost = sample->alone ? took_alone(entry, took) : took;
    __atomic_store_n(&entry->cost_ns, cost, __ATOMIC_RELAXED);
    entry->doubts = entry->doubted = 0;
    entry->samples++;
    if (!cost_is_certain(entry))
        note_estimate(entry, sample, stands_for, took);
    return (sample->alone ? (int64_t) stands_for : 1) * (took - sample->paid_ns);
}

/* What was not always the same may have taken what it was said to. */
int64_t cost_settle(struct cost *entry)
{
    int64_t too_much = entry->estimated_ns - entry->estimates * entry->cost_ns;

    if (!cost_is_certain(entry))
        return 0;
    entry->estimates = 0;
    entry->estimated_ns = 0;
    return entry->varies || entry->cost_ns < COSTS_LONG_NS ? 0 : larger(too_much, 0);
}
