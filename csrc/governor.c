/* SPDX-License-Identifier: Apache-2.0 */
/* governor.c -- credit, and what is in flight: what may begin now; see governor.h. */
#include "governor.h"
#include "number.h"

#define MILLISECOND INT64_C(1000000)

/* How long a share must last that is bought at once: seldom enough, and no wave in the share. */
#define CHUNK_OF_NS    (10 * MILLISECOND)
#define CHUNK_LEAST_NS (MILLISECOND / 5)
#define CHUNK_MOST_NS  (2 * MILLISECOND)

/* What may be in flight: enough that a process which wakes late finds the device still busy. */
#define FLIGHT_NS       (8 * MILLISECOND)
#define FLIGHT_LAUNCHES 2

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
#define HUSH_END_NS  ((uint64_t) (2 * MILLISECOND)) /* whoever has not, since it may be over, */
#define WISH_LOOK_NS ((uint64_t) (2 * MILLISECOND)) /* whoever wishes for a moment, */
#define WAIT_LOOK_NS ((uint64_t) (4 * MILLISECOND)) /* or waits for its share meanwhile */

/* A container counts as at work for that long after it waited or saw something finish, and after
 * a purchase for that many times what is in flight. */
#define LINGER_NS    (10 * MILLISECOND)
#define FLIGHT_TIMES 8

/* What others are told of work whose length nobody knows. */
#define UNKNOWN_NS ((uint64_t) (1000 * MILLISECOND))

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

/* What is ahead is told in GPU time, as everything is that others divide. */
static void publish(struct governor *governor)
{
    uint64_t begun = load(&governor->begun_ns);
    uint64_t ahead = load(&governor->bought_ns) - load(&governor->finished_ns);
    uint64_t finished = (int64_t) ahead > 0
                            ? begun - (uint64_t) governor_true_cost(governor, (int64_t) ahead)
                            : begun;

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

/* What is bought at once. In several streams it is much, since at its ends they overlap less. */
static int64_t chunk_of(const struct governor *governor, uint32_t rate)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    if (governor->wary)
        return 0;
    if (overlap)
        return CHUNK_MOST_NS * CLOCK_WHOLE / overlap;
    return smaller(larger(budget_part(CHUNK_OF_NS, rate), CHUNK_LEAST_NS), CHUNK_MOST_NS);
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

static int64_t flight_most(const struct governor *governor, const struct governor_share *share)
{
    if (governor->wary)
        return 0;
    return share->quiet ? QUIET_FLIGHT_NS : FLIGHT_NS;
}

enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns)
{
    struct usage_compute *shared = governor->shared;
    uint32_t rate = rate_of(share);
    /* In pockets there may be more than this launch costs. */
    int64_t spare = credit_gather(&governor->credit) - cost_ns;
    int64_t amount = larger(cost_ns, chunk_of(governor, rate) - larger(spare, 0));
    int64_t flight = in_flight(governor);
    int64_t floor = share->quiet ? -QUIET_DEBT_NS : 0;
    int64_t price, budget;

    budget_fill(shared, rate, share->hush_ns > now, now);
    if (share->hush_ns > now) {
        governor_empty(governor, now);
        *until_ns = now + (in_flight(governor) ? (uint64_t) HUSH_LOOK_NS : HUSH_END_NS);
        budget_active(shared, share->hush_ns + (uint64_t) LINGER_NS);
        return GOVERNOR_WAIT;
    }
    if (flight && governor_true_cost(governor, flight + cost_ns) >
                      larger(flight_most(governor, share),
                             FLIGHT_LAUNCHES * governor_true_cost(governor, cost_ns))) {
        budget_active(shared, now + (uint64_t) (FLIGHT_TIMES * flight));
        return GOVERNOR_FULL;
    }
    price = larger(governor_true_cost(governor, amount), 1);
    budget = governor->unlimited ? BUDGET_BURST_NS : budget_take(shared, price, floor);
    if (budget <= floor) {
        if (governor_pay(governor, cost_ns))
            return GOVERNOR_GO;
        *until_ns = now + (uint64_t) budget_time_for(floor + 1 - budget, rate);
        budget_active(shared, *until_ns + (uint64_t) LINGER_NS);
        look_again(governor, now, until_ns);
        return GOVERNOR_WAIT;
    }
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->begun_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->bought_ns, (uint64_t) amount, __ATOMIC_RELAXED);
    credit_buy(&governor->credit, amount - cost_ns);
    budget_active(shared, now + (uint64_t) (FLIGHT_TIMES * (flight + amount)));
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
    word_raise(&governor->finished_ns, paid_ns);
    publish(governor);
    if (in_flight(governor))
        return;
    publish_nothing(governor);
    budget_active_no_longer(governor->shared, now + (uint64_t) LINGER_NS);
}

void governor_worked(struct governor *governor, uint64_t begun_ns, uint64_t done_ns)
{
    budget_active_between(governor->shared, begun_ns, done_ns + (uint64_t) LINGER_NS);
}

void governor_return_credit(struct governor *governor)
{
    int64_t credit = credit_take(&governor->credit);
    int64_t price;

    if (!credit)
        return;
    price = governor_true_cost(governor, credit);
    __atomic_sub_fetch(&governor->bought_ns, (uint64_t) credit, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->begun_ns, (uint64_t) price, __ATOMIC_RELAXED);
    __atomic_add_fetch(&governor->shared->budget_ns, price, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->shared->busy_ns, (uint64_t) price, __ATOMIC_RELAXED);
}

void governor_empty(struct governor *governor, uint64_t now)
{
    governor_return_credit(governor);
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

void governor_waits(struct governor *governor)
{
    __atomic_add_fetch(&governor->shared->waits, 1, __ATOMIC_RELAXED);
}

void governor_waited(struct governor *governor, uint64_t waited_ns)
{
    __atomic_add_fetch(&governor->shared->waited_ns, waited_ns, __ATOMIC_RELAXED);
}
