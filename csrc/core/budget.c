/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c -- fills and charges a container's budget; see budget.h. */
#include "core/budget.h"
#include "core/number.h"

#define MILLISECOND INT64_C(1000000)

/* The largest debt of a container; a measurement that leads to more is wrong. */
#define DEBT_NS (60000 * MILLISECOND)

/* A time that is older, or further in the future, is from another boot. */
#define OLDEST_NS  (INT64_C(3600000) * MILLISECOND)
#define IN_STEP_NS (1000 * MILLISECOND)

/* Shortest refill interval: shorter ones would lose a fraction again and again. */
#define REFILL_NS (MILLISECOND / 50)

/* Claim the time since the last refill for the caller to add; 0 if it is too early or another
 * thread was faster; below 0 if it was never filled since boot. */
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
    return from == 0 || from >= now || now - from > (uint64_t) OLDEST_NS ? -1
                                                                         : (int64_t) (now - from);
}

/* Any value may have been written there by another process. */
static void save(struct usage_compute *shared, int64_t ns, int64_t most)
{
    int64_t saved = __atomic_load_n(&shared->saved_ns, __ATOMIC_RELAXED);
    int64_t sum;

    do {
        sum = smaller(within(saved, 0, most) + smaller(ns, most), most);
        if (sum == saved)
            return;
    } while (!__atomic_compare_exchange_n(&shared->saved_ns, &saved, sum, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}

void budget_draw(struct usage_compute *shared, int64_t ns)
{
    int64_t saved = __atomic_load_n(&shared->saved_ns, __ATOMIC_RELAXED);
    int64_t drawn;

    do {
        drawn = smaller(saved, ns);
        if (drawn <= 0)
            return;
    } while (!__atomic_compare_exchange_n(&shared->saved_ns, &saved, saved - drawn, 1,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_add_fetch(&shared->budget_ns, drawn, __ATOMIC_RELAXED);
}

void budget_fill(struct usage_compute *shared, uint32_t rate, int64_t keep_ns, int64_t save_ns,
                 uint64_t now)
{
    int64_t passed = claim_time(shared, now);
    int64_t gained = passed < 0 ? BUDGET_START_NS : budget_part(passed, rate);
    int64_t most = larger(budget_part(keep_ns, rate), BUDGET_START_NS);
    int64_t budget, filled;

    if (!passed)
        return;
    budget = budget_left(shared);
    do
        filled = larger(smaller(budget + gained, most), smaller(budget, most));
    while (!__atomic_compare_exchange_n(&shared->budget_ns, &budget, filled, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    save(shared, larger(budget + gained - filled, 0), larger(budget_part(save_ns, rate) - most, 0));
}

int64_t budget_time_for(int64_t ns, uint32_t rate)
{
    return larger(ns / rate * CLOCK_WHOLE + (ns % rate + 1) * CLOCK_WHOLE / rate, REFILL_NS);
}

void budget_charge(struct usage_compute *shared, int64_t ns)
{
    int64_t budget = budget_left(shared);
    int64_t changed;

    do {
        changed = budget - ns;
        if (ns > 0 && changed < -DEBT_NS)
            changed = smaller(budget, -DEBT_NS);
    } while (!__atomic_compare_exchange_n(&shared->budget_ns, &budget, changed, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    __atomic_add_fetch(&shared->busy_ns, (uint64_t) (budget - changed), __ATOMIC_RELAXED);
}
