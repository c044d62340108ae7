/* SPDX-License-Identifier: Apache-2.0 */
/* governor.c -- budget, credit and what is in flight; see governor.h. */
#include "governor.h"

#define MILLISECOND INT64_C(1000000)

/* How long a share must last that is bought at once: seldom enough, and no wave in the share. */
#define CHUNK_OF_NS    (10 * MILLISECOND)
#define CHUNK_LEAST_NS (MILLISECOND / 5)
#define CHUNK_MOST_NS  (2 * MILLISECOND)

/* What may be in flight: enough that a process which wakes late finds the device still busy. */
#define FLIGHT_NS       (8 * MILLISECOND)
#define FLIGHT_LAUNCHES 2

/* What idle time leaves in the budget; and what time with work does, in which the device was
 * given to others, for that long at the container's rate. */
#define BURST_NS  (2 * MILLISECOND)
#define BEHIND_OF (40 * MILLISECOND)

/* What a measurement can make a container owe; more is nonsense. */
#define DEBT_NS (60000 * MILLISECOND)

/* A container counts as at work for that long after it waited or saw something finish, and after
 * a purchase for that many times what is in flight. */
#define LINGER_NS    (10 * MILLISECOND)
#define FLIGHT_TIMES 8

/* A time that is older, or in the future by more, is of another boot. */
#define OLDEST_NS  (INT64_C(3600000) * MILLISECOND)
#define IN_STEP_NS (1000 * MILLISECOND)

/* The budget is not filled more often, so that no fraction is lost again and again. */
#define REFILL_NS (MILLISECOND / 50)

/* What others are told of work whose length nobody knows. */
#define UNKNOWN_NS ((uint64_t) (1000 * MILLISECOND))

#define OVERLAP_MEMORY_NS                                                   \
    ((uint64_t) (40 * MILLISECOND)) /* of credit, behind the measured ratio \
                                     */
#define OVERLAP_LEAST (CLOCK_WHOLE / 64)
#define OVERLAP_NONE  (CLOCK_WHOLE - CLOCK_WHOLE / 20)

static int64_t part_of(int64_t ns, uint32_t part)
{
    return ns / CLOCK_WHOLE * part + ns % CLOCK_WHOLE * part / CLOCK_WHOLE;
}

static int64_t larger(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static int64_t smaller(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static uint32_t rate_of(const struct governor_share *share)
{
    uint64_t rate = share->own + (uint64_t) share->own * share->lent / CLOCK_WHOLE;

    if (rate > share->limit)
        rate = share->limit > share->own ? share->limit : share->own;
    return rate ? (uint32_t) rate : 1;
}

static void raise_word(uint64_t *word, uint64_t value)
{
    uint64_t seen = load(word);

    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* The time since the last refill, which is the caller's now; 0 if it is too early or somebody else
 * was faster. */
static int64_t claim_time(struct usage_compute *shared, uint64_t now, uint64_t *from)
{
    *from = __atomic_load_n(&shared->refilled_ns, __ATOMIC_ACQUIRE);
    if (*from >= now && *from - now < (uint64_t) IN_STEP_NS)
        return 0;
    if (*from < now && now - *from < (uint64_t) REFILL_NS)
        return 0;
    if (!__atomic_compare_exchange_n(&shared->refilled_ns, from, now, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return 0;
    if (*from >= now || now - *from > (uint64_t) OLDEST_NS)
        *from = now - (uint64_t) smaller((int64_t) now, OLDEST_NS);
    return (int64_t) (now - *from);
}

/* What the budget becomes by *gained_ns*, of which *idle_ns* without work. */
static int64_t filled(int64_t budget, int64_t gained_ns, int64_t idle_ns, uint32_t rate)
{
    int64_t behind = larger(part_of(BEHIND_OF, rate), BURST_NS);

    budget += gained_ns;
    if (budget > behind)
        budget = behind;
    budget += idle_ns;
    return idle_ns && budget > BURST_NS ? BURST_NS : budget;
}

static void refill(struct governor *governor, uint32_t rate, uint64_t now)
{
    struct usage_compute *shared = governor->shared;
    uint64_t active, from;
    int64_t passed = claim_time(shared, now, &from);
    int64_t idle = 0;
    int64_t budget;

    if (!passed)
        return;
    active = load(&shared->active_ns);
    if (active < now)
        idle = smaller(passed, (int64_t) (now - active));
    else if (active - now > (uint64_t) OLDEST_NS)
        idle = passed;
    budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(
        &shared->budget_ns, &budget,
        filled(budget, part_of(passed - idle, rate), part_of(idle, rate), rate), 1,
        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void publish(struct governor *governor)
{
    uint64_t begun = load(&governor->bought_ns);

    if (__atomic_load_n(&governor->unknown, __ATOMIC_RELAXED))
        begun += UNKNOWN_NS;
    __atomic_store_n(&governor->work->finished,
                     (uint32_t) (load(&governor->finished_ns) / WORK_UNIT_NS), __ATOMIC_RELAXED);
    __atomic_store_n(&governor->work->begun, (uint32_t) (begun / WORK_UNIT_NS), __ATOMIC_RELAXED);
}

void governor_unknown(struct governor *governor, int change)
{
    uint32_t seen = __atomic_load_n(&governor->unknown, __ATOMIC_RELAXED);

    while ((change > 0 || seen) &&
           !__atomic_compare_exchange_n(&governor->unknown, &seen, seen + (uint32_t) change, 1,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    publish(governor);
}

uint64_t governor_paid(const struct governor *governor)
{
    int64_t credit = __atomic_load_n(&governor->credit_ns, __ATOMIC_RELAXED);

    return load(&governor->bought_ns) - (uint64_t) larger(credit, 0);
}

static int64_t in_flight(const struct governor *governor)
{
    return larger((int64_t) (governor_paid(governor) - load(&governor->finished_ns)), 0);
}

static int64_t true_cost(const struct governor *governor, int64_t credit_ns)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    return overlap ? part_of(credit_ns, overlap) : credit_ns;
}

/* Take *price_ns* from the budget if there is anything in it; what was there before. */
static int64_t take(struct usage_compute *shared, int64_t price_ns)
{
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);

    while (budget > 0 &&
           !__atomic_compare_exchange_n(&shared->budget_ns, &budget, budget - price_ns, 1,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return budget;
}

/* How long it takes to gain *ns*, and long enough that it is added. */
static int64_t time_for(int64_t ns, uint32_t rate)
{
    return larger(ns / rate * CLOCK_WHOLE + (ns % rate + 1) * CLOCK_WHOLE / rate, REFILL_NS);
}

enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns)
{
    struct usage_compute *shared = governor->shared;
    uint32_t rate = rate_of(share);
    int64_t chunk = smaller(larger(part_of(CHUNK_OF_NS, rate), CHUNK_LEAST_NS), CHUNK_MOST_NS);
    int64_t amount = larger(cost_ns, chunk);
    int64_t flight = in_flight(governor);
    int64_t price, budget;

    refill(governor, rate, now);
    if (flight && flight + cost_ns > larger(FLIGHT_NS, FLIGHT_LAUNCHES * cost_ns)) {
        raise_word(&shared->active_ns, now + (uint64_t) (FLIGHT_TIMES * flight));
        return GOVERNOR_FULL;
    }
    price = larger(true_cost(governor, amount), 1);
    budget = take(shared, price);
    if (budget <= 0) {
        *until_ns = now + (uint64_t) time_for(1 - budget, rate);
        raise_word(&shared->active_ns, *until_ns + (uint64_t) LINGER_NS);
        return GOVERNOR_WAIT;
    }
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->bought_ns, (uint64_t) amount, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->credit_ns, amount - cost_ns, __ATOMIC_RELAXED);
    raise_word(&shared->active_ns, now + (uint64_t) (FLIGHT_TIMES * (flight + amount)));
    publish(governor);
    return GOVERNOR_GO;
}

void governor_finish(struct governor *governor, uint64_t paid_ns, uint64_t now)
{
    struct usage_compute *shared = governor->shared;
    uint64_t active;

    raise_word(&governor->finished_ns, paid_ns);
    publish(governor);
    if (in_flight(governor))
        return;
    __atomic_store_n(&governor->work->finished,
                     __atomic_load_n(&governor->work->begun, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    active = load(&shared->active_ns);
    if (active > now + (uint64_t) LINGER_NS)
        __atomic_compare_exchange_n(&shared->active_ns, &active, now + (uint64_t) LINGER_NS, 0,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Nothing is begun on old credit while there is a debt. */
static void take_credit_back(struct governor *governor)
{
    int64_t credit = __atomic_load_n(&governor->credit_ns, __ATOMIC_RELAXED);

    while (credit > 0 && !__atomic_compare_exchange_n(&governor->credit_ns, &credit, 0, 1,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    if (credit <= 0)
        return;
    __atomic_sub_fetch(&governor->bought_ns, (uint64_t) credit, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->shared->budget_ns, true_cost(governor, credit), __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->shared->busy_ns, (uint64_t) true_cost(governor, credit),
                       __ATOMIC_RELAXED);
}

void governor_correct(struct governor *governor, int64_t short_ns)
{
    struct usage_compute *shared = governor->shared;
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    int64_t changed;

    short_ns = true_cost(governor, short_ns);
    do {
        changed = budget - short_ns;
        if (short_ns > 0 && changed < -DEBT_NS)
            changed = smaller(budget, -DEBT_NS);
    } while (!__atomic_compare_exchange_n(&shared->budget_ns, &budget, changed, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) (budget - changed), __ATOMIC_RELAXED);
    if (short_ns > 0 && changed < 0)
        take_credit_back(governor);
}

void governor_overlap(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns)
{
    uint64_t paid = load(&governor->overlap_paid_ns) + paid_ns;
    uint64_t busy = load(&governor->overlap_busy_ns) + busy_ns;
    uint64_t ratio;

    if (paid > OVERLAP_MEMORY_NS) {
        ratio = (uint64_t) ((double) busy * CLOCK_WHOLE / (double) paid);
        if (ratio < OVERLAP_LEAST)
            ratio = OVERLAP_LEAST;
        __atomic_store_n(&governor->overlap, ratio > OVERLAP_NONE ? 0 : (uint32_t) ratio,
                         __ATOMIC_RELAXED);
        paid /= 2;
        busy /= 2;
    }
    __atomic_store_n(&governor->overlap_paid_ns, paid, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->overlap_busy_ns, busy, __ATOMIC_RELAXED);
}

void governor_waits(struct governor *governor)
{
    __atomic_add_fetch(&governor->shared->waits, 1, __ATOMIC_RELAXED);
}

void governor_waited(struct governor *governor, uint64_t waited_ns)
{
    __atomic_add_fetch(&governor->shared->waited_ns, waited_ns, __ATOMIC_RELAXED);
}
