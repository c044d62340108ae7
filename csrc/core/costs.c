/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c -- table of launch costs; see costs.h. */
#include "core/costs.h"
#include "core/number.h"

#define LEAST_NS INT64_C(500)
#define MOST_NS  INT64_C(4000000000) /* longer work is charged as it runs */

/* Longest expectation of a shape whose first launch has not finished. */
#define DOUBT_NS INT64_C(2000000)

/* Time slices of a device are taken to be shorter than LONG_NS, and so much longer than SHORT_NS
 * that the clock says little about work shorter than that. */
#define LONG_NS  INT64_C(2500000)
#define SHORT_NS (LONG_NS / 8)

enum {
    DOUBT = 8,   /* factor by which each further launch is expected to take longer */
    CLOSER = 4,  /* a measurement moves the expectation by 1/CLOSER of the difference */
    ALIKE = 32,  /* times that differ by less than 1/ALIKE count as the same */
    OFTEN = 8,   /* "often": one of so many measurements; */
    USUAL = 4,   /* "usually": one of so many */
    EARLY = 8,   /* of so many first measurements the shortest counts */
    EPOCH = 250, /* measurements for which the shortest is kept, and for as many again */
    MANY = 32,   /* so many contradict a cost measured alone; also the most in a mean */
    FEW = 4,     /* so many do if that cost is doubted */
};

static struct cost *place_of_function(struct costs *costs, uint64_t function)
{
    return &costs->functions[costs_hash(function) >> (64 - COSTS_FUNCTION_BITS)];
}

static struct cost *find(struct costs *costs, const struct costs_key *key)
{
    struct cost *first = &costs->shapes[key->shape >> (64 - COSTS_BITS)];
    struct cost *second = &costs->shapes[(key->shape >> (64 - COSTS_BITS)) ^ 1];

    if (__atomic_load_n(&first->tag, __ATOMIC_ACQUIRE) == costs_tag(key->shape))
        return first;
    return __atomic_load_n(&second->tag, __ATOMIC_ACQUIRE) == costs_tag(key->shape) ? second : NULL;
}

static struct cost_beside *beside_of(struct costs *costs, const struct cost *cost)
{
    return &costs->beside[cost - costs->shapes];
}

struct cost *costs_make(struct costs *costs, const struct costs_key *key, int64_t guess_ns)
{
    struct cost *cost = find(costs, key);
    struct cost *second = &costs->shapes[(key->shape >> (64 - COSTS_BITS)) ^ 1];
    const struct cost *function = place_of_function(costs, key->function);

    if (cost)
        return cost;
    cost = &costs->shapes[key->shape >> (64 - COSTS_BITS)];
    if (cost->tag && (!second->tag || second->state < cost->state))
        cost = second;
    __atomic_store_n(&cost->tag, 0, __ATOMIC_RELEASE);
    cost->state = COST_GUESSED;
    cost->pending = 0;
    cost->count = cost->mixed = 0;
    *beside_of(costs, cost) = (struct cost_beside) {0};
    if (function->tag == costs_tag(costs_hash(key->function)))
        guess_ns = function->ns;
    cost->ns = (uint32_t) within(guess_ns, LEAST_NS, MOST_NS);
    __atomic_store_n(&cost->tag, costs_tag(key->shape), __ATOMIC_RELEASE);
    return cost;
}

int64_t costs_expect(struct cost *cost)
{
    int64_t ns = cost->ns;

    if (cost->state == COST_GUESSED && cost->pending && ns < DOUBT_NS)
        cost->ns = (uint32_t) smaller(DOUBT * ns, DOUBT_NS);
    return ns;
}

static int64_t nearer(int64_t known, int64_t measured, int64_t part)
{
    return known + (measured - known) / part;
}

static uint32_t lowest(const struct cost_beside *beside)
{
    return beside->before_ns && beside->before_ns < beside->low_ns ? beside->before_ns
                                                                   : beside->low_ns;
}

/* Work that found its stream idle begins with a time slice of its own as often as not, and so says
 * less: it counts only as long as there are no queued measurements. */
static void note_clock(struct cost_beside *beside, const struct costs_sample *sample)
{
    if (sample->queued && !beside->mean_is_queued)
        beside->mean_of = 0;
    else if (!sample->queued && beside->mean_is_queued)
        return;
    beside->mean_is_queued = !!sample->queued;
    beside->mean_of = (uint8_t) smaller(beside->mean_of + 1, MANY);
    beside->mean_ns =
        (uint32_t) nearer(beside->mean_ns, smaller(sample->clock_ns, MOST_NS), beside->mean_of);
}

static void note_own(struct cost_beside *beside, int64_t ns)
{
    int64_t off = ns - beside->own_ns;

    if (beside->own_of)
        beside->own_off_ns =
            (int32_t) nearer(beside->own_off_ns, off < 0 ? -off : off, beside->own_of);
    beside->own_of = (uint8_t) smaller(beside->own_of + 1, MANY);
    beside->own_ns = (int32_t) nearer(beside->own_ns, ns, beside->own_of);
}

/* A shape may have launches of very different length. Such a one is longer than the shortest by
 * more than others can have had without publishing it; all else may be a wait for them. */
static void note_mixed(struct cost_beside *beside, int64_t own_ns, int queued)
{
    int64_t low = lowest(beside);
    int longer = own_ns > low + LONG_NS;

    if (longer && !queued)
        return;
    beside->longer = (uint8_t) smaller(beside->longer + longer, MANY);
    beside->mixed_of = (uint32_t) smaller(beside->mixed_of + 1, MANY);
    beside->mixed_ns =
        (int32_t) nearer(beside->mixed_ns, queued ? larger(own_ns, low) : low, beside->mixed_of);
    if (beside->mixed_of == MANY && beside->mixed_ns < low + SHORT_NS / 8)
        beside->longer = 0; /* there was one, or there are no more */
}

static void note_beside(struct cost_beside *beside, const struct costs_sample *sample)
{
    int64_t ns = sample->queued ? sample->ns : sample->most_ns;
    int64_t low;

    if (sample->queued && !beside->queued)
        beside->count = beside->before_ns = 0; /* their launch overhead was a guess */
    else if (!sample->queued && !beside->queued)
        ns = sample->ns;
    if (beside->count == EPOCH) { /* older measurements count less and less */
        beside->before_ns = beside->low_ns;
        beside->count = beside->alike = 0;
    }
    low = beside->count ? beside->low_ns : MOST_NS;
    if (ns < low - low / ALIKE) {
        low = ns;
        beside->alike = !sample->crowded;
    } else {
        beside->alike += ns <= low + low / ALIKE && !sample->crowded;
        low = smaller(low, ns);
    }
    beside->count++;
    beside->low_ns = (uint32_t) low;
    beside->seen = (uint8_t) smaller(beside->seen + 1, MANY);
    beside->wait_ns = (uint32_t) nearer(beside->wait_ns, smaller(ns - low, MOST_NS), beside->seen);
    beside->queued |= !!sample->queued;
    if (sample->clock_ns)
        note_clock(beside, sample);
    if (!sample->own_ns || sample->crowded)
        return;
    note_own(beside, smaller(sample->own_ns, INT32_MAX));
    note_mixed(beside, smaller(sample->own_ns, INT32_MAX), sample->queued);
}

static int is_mixed(const struct cost_beside *beside)
{
    return beside->longer > 1 && beside->mixed_of >= FEW;
}

/* By the time that others did not have. */
static int is_always_the_same(const struct cost_beside *beside)
{
    return beside->own_of >= FEW && beside->own_off_ns <= beside->own_ns / ALIKE;
}

/* Each measurement includes time slices of others, or the work varies: then the shortest says
 * little, and the time that others did not have is right on average. That is some time slices off,
 * so it says nothing about short work. */
static int is_uneven(const struct cost_beside *beside)
{
    uint32_t low = lowest(beside);

    if (low >= LONG_NS)
        return 1;
    return beside->alike * OFTEN < beside->count &&
           (low >= SHORT_NS || (beside->own_of >= EARLY && beside->own_ns > low + SHORT_NS));
}

static int is_sure(const struct cost_beside *beside)
{
    return is_always_the_same(beside) || is_mixed(beside) ||
           (is_uneven(beside) ? beside->own_of >= EARLY : beside->alike > 1);
}

/* Each launch in an idle stream waits for a time slice, and the shortest of a few waits is not 0:
 * if waits spread evenly from 0 to a longest one, it is about twice their mean by their number. */
static int64_t shortest_wait(const struct cost_beside *beside)
{
    return beside->alike * OFTEN >= beside->count ? 0
                                                  : 2 * (int64_t) beside->wait_ns / beside->count;
}

/* Short work mostly runs within one time slice, and then always takes the same time. Where hardly
 * any two measurements agree, each includes time slices of others, and the clock says what the work
 * takes on average. */
static int64_t known_beside(const struct cost_beside *beside)
{
    int64_t low = lowest(beside);
    int64_t mean = beside->mean_ns ? smaller(low, beside->mean_ns) : low;

    if (is_always_the_same(beside))
        return smaller(low, beside->own_ns);
    if (is_mixed(beside))
        return beside->mixed_ns;
    if (beside->own_of >= EARLY && is_uneven(beside))
        return beside->own_ns;
    if (low >= LONG_NS)
        return mean;
    if (!beside->queued && beside->seen >= EARLY)
        return larger(low - shortest_wait(beside), low / 2);
    if (low < SHORT_NS || beside->seen < EARLY)
        return low;
    if (beside->alike * USUAL >= beside->count)
        return low;
    return beside->alike * OFTEN >= beside->count && mean >= low - low / CLOSER ? low : mean;
}

/* A cost measured alone holds until many measurements beside others contradict it. */
static int is_contradicted(const struct cost *cost, const struct cost_beside *beside, int64_t seen)
{
    int64_t known = cost->ns;
    int doubted = cost->state == COST_DOUBTED;

    return beside->seen >= (doubted ? FEW : MANY) &&
           within(seen, known - known / (doubted ? ALIKE : CLOSER), known + known / CLOSER) != seen;
}

static int64_t learn_beside(struct costs *costs, struct cost *cost,
                            const struct costs_sample *sample)
{
    struct cost_beside *beside = beside_of(costs, cost);
    int64_t seen;

    note_beside(beside, sample);
    seen = known_beside(beside);
    if (cost->state < COST_DOUBTED)
        return seen;
    if (sample->queued && !sample->crowded &&
        (sample->own_ns ? sample->own_ns : sample->clock_ns) > (int64_t) cost->ns + LONG_NS)
        cost->state = COST_DOUBTED;
    if (!is_mixed(beside) && !is_contradicted(cost, beside, seen))
        return cost->ns;
    cost->state = COST_SEEN;
    return seen;
}

/* Of a shape with launches of very different length, those are measured alone that are short. */
static int64_t learn_alone(struct costs *costs, struct cost *cost,
                           const struct costs_sample *sample)
{
    struct cost_beside *beside = beside_of(costs, cost);

    if (beside->longer && !sample->changed) {
        beside->low_ns = (uint32_t) smaller(beside->low_ns, sample->ns);
        note_mixed(beside, smaller(sample->ns, INT32_MAX), 1);
        if (is_mixed(beside))
            return beside->mixed_ns;
    } else {
        *beside = (struct cost_beside) {0};
    }
    cost->count = cost->state != COST_MEASURED || sample->changed
                      ? 1
                      : (uint8_t) smaller(cost->count + 1, COSTS_MEAN);
    cost->state = beside->longer ? COST_DOUBTED : COST_MEASURED;
    return nearer(cost->ns, sample->ns, cost->count);
}

static void learn_function(struct costs *costs, const struct cost *cost,
                           const struct costs_key *key)
{
    struct cost *function = place_of_function(costs, key->function);

    if (function->tag != costs_tag(costs_hash(key->function)))
        *function = (struct cost) {.tag = costs_tag(costs_hash(key->function)), .ns = cost->ns};
    function->ns = (uint32_t) nearer(function->ns, cost->ns, CLOSER);
}

void costs_note_first(struct costs *costs, struct cost *cost, const struct costs_key *key,
                      int64_t ns)
{
    if (__atomic_load_n(&cost->tag, __ATOMIC_RELAXED) != costs_tag(key->shape))
        return;
    cost->ns = (uint32_t) within(ns, LEAST_NS, MOST_NS);
    cost->state = (uint8_t) larger(cost->state, COST_SEEN);
    learn_function(costs, cost, key);
}

void costs_learn(struct costs *costs, struct cost *cost, const struct costs_key *key,
                 const struct costs_sample *sample)
{
    int64_t ns = sample->ns;

    if (__atomic_load_n(&cost->tag, __ATOMIC_RELAXED) != costs_tag(key->shape))
        return;
    if (!sample->alone) {
        ns = learn_beside(costs, cost, sample);
    } else if (sample->crowded) {
        if (!sample->changed)
            ns =
                cost->state == COST_GUESSED ? sample->low_ns : within(cost->ns, sample->low_ns, ns);
    } else {
        ns = learn_alone(costs, cost, sample);
    }
    cost->ns = (uint32_t) within(ns, LEAST_NS, MOST_NS);
    if (cost->state < COST_DOUBTED)
        cost->state = is_sure(beside_of(costs, cost)) ? COST_SURE : COST_SEEN;
    cost->mixed = cost->state < COST_DOUBTED && is_mixed(beside_of(costs, cost));
    cost->pending = 0;
    learn_function(costs, cost, key);
}

void costs_note_running(struct cost *cost, int64_t ns)
{
    if (ns > (int64_t) cost->ns)
        cost->ns = (uint32_t) smaller(ns, MOST_NS);
}

void costs_doubt(struct costs *costs)
{
    for (unsigned i = 0; i < 1 << COSTS_BITS; i++)
        if (costs->shapes[i].state == COST_MEASURED)
            costs->shapes[i].state = COST_DOUBTED;
}

void costs_forget(struct costs *costs, const struct costs_key *key)
{
    struct cost *cost = find(costs, key);
    struct cost *function = place_of_function(costs, key->function);

    if (cost)
        __atomic_store_n(&cost->tag, 0, __ATOMIC_RELEASE);
    if (function->tag == costs_tag(costs_hash(key->function)))
        __atomic_store_n(&function->tag, 0, __ATOMIC_RELEASE);
}
