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
#define BURST_NS      (2 * MILLISECOND)
#define BEHIND_OF     (100 * MILLISECOND)
#define BEHIND_HUSHED (400 * MILLISECOND)

/* What a process may owe in a moment that is given to it so that it can measure. */
#define QUIET_DEBT_NS (100 * MILLISECOND)

/* And have in flight, since the next one waits for that. */
#define QUIET_FLIGHT_NS MILLISECOND

/* How long that moment is to be: for one that has begun before, two that count, and one more; and
 * until we know of it. */
#define QUIET_TIMES   4
#define QUIET_LATE_NS ((uint64_t) (10 * MILLISECOND))

/* In a hush, whoever has something in flight looks again that often, since others wait for that. */
#define HUSH_LOOK_NS (MILLISECOND / 2)
#define WISH_LOOK_NS ((uint64_t) (2 * MILLISECOND)) /* and whoever wishes for one, */
#define WAIT_LOOK_NS ((uint64_t) (4 * MILLISECOND)) /* or waits for its share meanwhile */

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

/* Of credit, behind the measured ratio: at least, and at most. */
#define OVERLAP_EXACT_LASTS 2048 /* measurements that are not */
#define OVERLAP_LEAST_NS    ((uint64_t) (20 * MILLISECOND))
#define OVERLAP_MEMORY_NS   ((uint64_t) (160 * MILLISECOND))
#define OVERLAP_LEAST       (CLOCK_WHOLE / 64)
#define OVERLAP_NONE        (CLOCK_WHOLE - CLOCK_WHOLE / 20)

/* Work may take an eighth longer than was paid, and so much more; beside others, where it is known
 * less well, twice as long. */
#define AUDIT_ALONE_NS  (3 * MILLISECOND)
#define AUDIT_BESIDE_NS (40 * MILLISECOND)
#define AUDIT_MEMORY_NS (400 * MILLISECOND)

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

/* What the budget becomes by *gained_ns*, of which *idle_ns* without work. What others were to be
 * left alone for is not lost. */
static int64_t filled(int64_t budget, int64_t gained_ns, int64_t idle_ns, uint32_t rate, int hushed)
{
    int64_t behind = larger(part_of(hushed ? BEHIND_HUSHED : BEHIND_OF, rate), BURST_NS);

    budget = larger(budget, smaller(budget + gained_ns, behind)) + idle_ns;
    return idle_ns && budget > BURST_NS ? BURST_NS : budget;
}

static void refill(struct governor *governor, uint32_t rate, int hushed, uint64_t now)
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
        filled(budget, part_of(passed - idle, rate), part_of(idle, rate), rate, hushed), 1,
        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static int64_t true_cost(const struct governor *governor, int64_t credit_ns)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    return overlap ? part_of(credit_ns, overlap) : credit_ns;
}

/* What is ahead is told in GPU time, as everything is that others divide. */
static void publish(struct governor *governor)
{
    uint64_t begun = load(&governor->begun_ns);
    uint64_t ahead = load(&governor->bought_ns) - load(&governor->finished_ns);
    uint64_t finished =
        (int64_t) ahead > 0 ? begun - (uint64_t) true_cost(governor, (int64_t) ahead) : begun;

    if (__atomic_load_n(&governor->unknown, __ATOMIC_RELAXED))
        begun += UNKNOWN_NS;
    __atomic_store_n(&governor->work->finished, (uint32_t) (finished / WORK_UNIT_NS),
                     __ATOMIC_RELAXED);
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
    return load(&governor->bought_ns) - (uint64_t) credit_left(&governor->credit);
}

static int64_t in_flight(const struct governor *governor)
{
    return larger((int64_t) (governor_paid(governor) - load(&governor->finished_ns)), 0);
}

/* Take *price_ns* from the budget if there is more in it than *floor*; what was there before. */
static int64_t take(struct usage_compute *shared, int64_t price_ns, int64_t floor)
{
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);

    while (budget > floor &&
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

/* What is bought at once. In several streams it is much, since at its ends they overlap less. */
static int64_t chunk_of(const struct governor *governor, uint32_t rate)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    if (overlap)
        return CHUNK_MOST_NS * CLOCK_WHOLE / overlap;
    return smaller(larger(part_of(CHUNK_OF_NS, rate), CHUNK_LEAST_NS), CHUNK_MOST_NS);
}

/* Whoever waits sees what it has in flight finish, as others look at that, and when it is given the
 * moment it wishes for. */
static void look_again(struct governor *governor, uint64_t now, uint64_t *until_ns)
{
    uint64_t again;

    if (!in_flight(governor))
        governor_empty(governor, now);
    if (governor->wishes)
        again = now + WISH_LOOK_NS;
    else if (in_flight(governor))
        again = now + WAIT_LOOK_NS;
    else
        return;
    if (*until_ns > again)
        *until_ns = again;
}

enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns)
{
    struct usage_compute *shared = governor->shared;
    uint32_t rate = rate_of(share);
    int64_t amount = larger(cost_ns, chunk_of(governor, rate) - credit_gather(&governor->credit));
    int64_t flight = in_flight(governor);
    int64_t floor = share->quiet ? -QUIET_DEBT_NS : 0;
    int64_t price, budget;

    refill(governor, rate, share->hush_ns > now, now);
    if (share->hush_ns > now) {
        governor_empty(governor, now);
        *until_ns = in_flight(governor) ? now + (uint64_t) HUSH_LOOK_NS : share->hush_ns;
        raise_word(&shared->active_ns, share->hush_ns + (uint64_t) LINGER_NS);
        return GOVERNOR_WAIT;
    }
    if (flight && true_cost(governor, flight + cost_ns) >
                      larger(share->quiet ? QUIET_FLIGHT_NS : FLIGHT_NS,
                             FLIGHT_LAUNCHES * true_cost(governor, cost_ns))) {
        raise_word(&shared->active_ns, now + (uint64_t) (FLIGHT_TIMES * flight));
        return GOVERNOR_FULL;
    }
    price = larger(true_cost(governor, amount), 1);
    budget = governor->unlimited ? BURST_NS : take(shared, price, floor);
    if (budget <= floor) {
        if (governor_pay(governor, cost_ns))
            return GOVERNOR_GO;
        *until_ns = now + (uint64_t) time_for(floor + 1 - budget, rate);
        raise_word(&shared->active_ns, *until_ns + (uint64_t) LINGER_NS);
        look_again(governor, now, until_ns);
        return GOVERNOR_WAIT;
    }
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->begun_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->bought_ns, (uint64_t) amount, __ATOMIC_RELAXED);
    credit_buy(&governor->credit, amount - cost_ns);
    raise_word(&shared->active_ns, now + (uint64_t) (FLIGHT_TIMES * (flight + amount)));
    publish(governor);
    return GOVERNOR_GO;
}

/* Nothing is in flight. As long as there is credit, of which nothing is said when it is used, that
 * is not the same as nothing at all: one unit. */
static void publish_nothing(struct governor *governor)
{
    uint32_t begun = __atomic_load_n(&governor->work->begun, __ATOMIC_RELAXED);
    int rest = credit_left(&governor->credit) > 0;

    __atomic_store_n(&governor->work->finished, begun - (uint32_t) rest, __ATOMIC_RELAXED);
}

void governor_finish(struct governor *governor, uint64_t paid_ns, uint64_t now)
{
    struct usage_compute *shared = governor->shared;
    uint64_t active;

    raise_word(&governor->finished_ns, paid_ns);
    publish(governor);
    if (in_flight(governor))
        return;
    publish_nothing(governor);
    active = load(&shared->active_ns);
    if (active > now + (uint64_t) LINGER_NS)
        __atomic_compare_exchange_n(&shared->active_ns, &active, now + (uint64_t) LINGER_NS, 0,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Nothing is begun on old credit while there is a debt. */
static void take_credit_back(struct governor *governor)
{
    int64_t credit = credit_take(&governor->credit);
    int64_t price;

    if (!credit)
        return;
    price = true_cost(governor, credit);
    __atomic_sub_fetch(&governor->bought_ns, (uint64_t) credit, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->begun_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->shared->budget_ns, price, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->shared->busy_ns, (uint64_t) price, __ATOMIC_RELAXED);
}

void governor_empty(struct governor *governor, uint64_t now)
{
    take_credit_back(governor);
    governor_finish(governor, load(&governor->finished_ns), now);
}

void governor_wish(struct governor *governor, uint64_t until_ns, uint64_t longest_ns, uint32_t slot)
{
    if (governor->unlimited)
        return;
    __atomic_store_n(&governor->shared->quiet_for, QUIET_TIMES * longest_ns + QUIET_LATE_NS,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&governor->shared->quiet_slot, slot, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->shared->quiet_ns, until_ns, __ATOMIC_RELEASE);
    governor->wishes = 1;
}

void governor_wish_no_more(struct governor *governor, uint64_t until_ns, uint32_t slot)
{
    if (governor->wishes && load(&governor->shared->quiet_slot) == slot)
        __atomic_store_n(&governor->shared->quiet_ns, until_ns, __ATOMIC_RELAXED);
    governor->wishes = 0;
}

void governor_correct(struct governor *governor, int64_t short_ns)
{
    struct usage_compute *shared = governor->shared;
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    int64_t changed;

    short_ns = true_cost(governor, short_ns);
    governor->audit_paid_ns += short_ns;
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

int governor_wants_quiet(const struct governor *governor)
{
    return governor->overlap && governor->overlap_exact < OVERLAP_EXACT_LASTS / 2;
}

void governor_overlap_anew(struct governor *governor)
{
    __atomic_store_n(&governor->overlap_paid_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->overlap_busy_ns, 0, __ATOMIC_RELAXED);
    governor->overlap_exact = 0;
}

void governor_overlap(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns, int exactly)
{
    uint64_t paid, busy, ratio;

    if (exactly && !governor->overlap_exact)
        governor_overlap_anew(governor);
    if (exactly)
        governor->overlap_exact = (uint32_t) smaller(
            governor->overlap_exact + OVERLAP_EXACT_LASTS / 16, OVERLAP_EXACT_LASTS);
    else if (governor->overlap_exact && governor->overlap_exact--)
        return;
    paid = load(&governor->overlap_paid_ns) + paid_ns;
    busy = load(&governor->overlap_busy_ns) + busy_ns;

    if (paid > OVERLAP_LEAST_NS) {
        ratio = (uint64_t) ((double) busy * CLOCK_WHOLE / (double) paid);
        if (ratio < OVERLAP_LEAST)
            ratio = OVERLAP_LEAST;
        __atomic_store_n(&governor->overlap, ratio > OVERLAP_NONE ? 0 : (uint32_t) ratio,
                         __ATOMIC_RELAXED);
    }
    if (paid > OVERLAP_MEMORY_NS) {
        paid /= 2;
        busy /= 2;
    }
    __atomic_store_n(&governor->overlap_paid_ns, paid, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->overlap_busy_ns, busy, __ATOMIC_RELAXED);
}

void governor_audit_anew(struct governor *governor)
{
    governor->audit_paid_ns = governor->audit_busy_ns = 0;
}

int governor_audit(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns, int alone)
{
    int64_t short_ns, enough;

    governor->audit_paid_ns += true_cost(governor, (int64_t) paid_ns);
    governor->audit_busy_ns += (int64_t) busy_ns;
    enough = governor->audit_paid_ns + governor->audit_paid_ns / (alone ? 8 : 1) +
             (alone ? AUDIT_ALONE_NS : AUDIT_BESIDE_NS);
    short_ns = governor->audit_busy_ns - enough;
    if (short_ns > 0) {
        governor_correct(governor,
                         alone ? governor->audit_busy_ns - governor->audit_paid_ns : short_ns);
        governor_audit_anew(governor);
        return 1;
    }
    if (governor->audit_busy_ns > AUDIT_MEMORY_NS) {
        governor->audit_paid_ns /= 2;
        governor->audit_busy_ns /= 2;
    }
    return 0;
}

void governor_waits(struct governor *governor)
{
    __atomic_add_fetch(&governor->shared->waits, 1, __ATOMIC_RELAXED);
}

void governor_waited(struct governor *governor, uint64_t waited_ns)
{
    __atomic_add_fetch(&governor->shared->waited_ns, waited_ns, __ATOMIC_RELAXED);
}
