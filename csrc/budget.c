/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c -- fills and charges a container's budget; see budget.h. */
#include "budget.h"
#include "number.h"

#define MILLISECOND INT64_C(1000000)

/* What time with work, in which the device was given to others, leaves: as much as comes in at the
 * container's rate for so long. */
#define BEHIND_OF     (100 * MILLISECOND)
#define BEHIND_HUSHED (400 * MILLISECOND)

/* What a measurement can make a container owe; more is nonsense. */
#define DEBT_NS (60000 * MILLISECOND)

/* A time that is older, or in the future by more, is of another boot. */
#define OLDEST_NS  (INT64_C(3600000) * MILLISECOND)
#define IN_STEP_NS (1000 * MILLISECOND)

/* It is not filled more often, so that no fraction is lost again and again. */
#define REFILL_NS (MILLISECOND / 50)

/* The time since it was filled last, which is the caller's now; 0 if it is too early or somebody
 * else was faster. */
static int64_t claim_time(struct usage_compute *shared, uint64_t now)
{
    uint64_t from = __atomic_load_n(&shared->refilled_ns, __ATOMIC_ACQUIRE);

    if (from >= now && from - now < (uint64_t) IN_STEP_NS)
        return 0;
    if (from < now && now - from < (uint64_t) REFILL_NS)
        return 0;
    if (!__atomic_compare_exchange_n(&shared->refilled_ns, &from, now, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return 0;
    if (from >= now || now - from > (uint64_t) OLDEST_NS)
        return smaller((int64_t) now, OLDEST_NS);
    return (int64_t) (now - from);
}

/* What the budget becomes by *gained_ns*, of which *idle_ns* without work. What others were to be
 * left alone for is not lost. */
static int64_t filled(int64_t budget, int64_t gained_ns, int64_t idle_ns, uint32_t rate, int hushed)
{
    int64_t behind = larger(budget_part(hushed ? BEHIND_HUSHED : BEHIND_OF, rate), BUDGET_BURST_NS);

    budget = larger(budget, smaller(budget + gained_ns, behind)) + idle_ns;
    return idle_ns && budget > BUDGET_BURST_NS ? BUDGET_BURST_NS : budget;
}

void budget_fill(struct usage_compute *shared, uint32_t rate, int hushed, uint64_t now)
{
    int64_t passed = claim_time(shared, now);
    uint64_t active;
    int64_t idle = 0;
    int64_t budget;

    if (!passed)
        return;
    active = __atomic_load_n(&shared->active_ns, __ATOMIC_RELAXED);
    if (active < now)
        idle = smaller(passed, (int64_t) (now - active));
    else if (active - now > (uint64_t) OLDEST_NS)
        idle = passed;
    budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(
        &shared->budget_ns, &budget,
        filled(budget, budget_part(passed - idle, rate), budget_part(idle, rate), rate, hushed), 1,
        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

int64_t budget_take(struct usage_compute *shared, int64_t price_ns, int64_t floor)
{
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);

    while (budget > floor &&
           !__atomic_compare_exchange_n(&shared->budget_ns, &budget, budget - price_ns, 1,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return budget;
}

int64_t budget_time_for(int64_t ns, uint32_t rate)
{
    return larger(ns / rate * CLOCK_WHOLE + (ns % rate + 1) * CLOCK_WHOLE / rate, REFILL_NS);
}

int64_t budget_charge(struct usage_compute *shared, int64_t short_ns)
{
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    int64_t changed;

    do {
        changed = budget - short_ns;
        if (short_ns > 0 && changed < -DEBT_NS)
            changed = smaller(budget, -DEBT_NS);
    } while (!__atomic_compare_exchange_n(&shared->budget_ns, &budget, changed, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) (budget - changed), __ATOMIC_RELAXED);
    return changed;
}

void budget_forgive(struct usage_compute *shared, int64_t ns)
{
    int64_t budget = __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
    int64_t given;

    do
        given = within(-budget, 0, ns);
    while (!__atomic_compare_exchange_n(&shared->budget_ns, &budget, budget + given, 1,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_sub_fetch(&shared->busy_ns, (uint64_t) given, __ATOMIC_RELAXED);
}

void budget_active(struct usage_compute *shared, uint64_t until_ns)
{
    word_raise(&shared->active_ns, until_ns);
}

void budget_active_between(struct usage_compute *shared, uint64_t from_ns, uint64_t until_ns)
{
    uint64_t seen = __atomic_load_n(&shared->active_ns, __ATOMIC_RELAXED);

    while (from_ns <= seen && seen < until_ns &&
           !__atomic_compare_exchange_n(&shared->active_ns, &seen, until_ns, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
}

void budget_active_no_longer(struct usage_compute *shared, uint64_t until_ns)
{
    uint64_t seen = __atomic_load_n(&shared->active_ns, __ATOMIC_RELAXED);

    if (seen > until_ns)
        __atomic_compare_exchange_n(&shared->active_ns, &seen, until_ns, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
}
