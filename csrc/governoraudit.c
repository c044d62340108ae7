/* SPDX-License-Identifier: Apache-2.0 */
/* governoraudit.c -- what measurements say of what was paid; see governor.h. */
#include "governor.h"
#include "number.h"

#define MILLISECOND INT64_C(1000000)

/* Of credit, behind the measured ratio: at least, and at most. What is exact counts sooner than
 * an estimate, since a quiet moment is over soon. */
#define OVERLAP_EXACT_LASTS 2048 /* measurements that are not */
#define OVERLAP_EXACT_NS    ((uint64_t) (2 * MILLISECOND))
#define OVERLAP_LEAST_NS    ((uint64_t) (20 * MILLISECOND))
#define OVERLAP_MEMORY_NS   ((uint64_t) (160 * MILLISECOND))
#define OVERLAP_LEAST       (CLOCK_WHOLE / 64)
#define OVERLAP_MOST        (CLOCK_WHOLE * 64)
#define OVERLAP_NONE_OF     20 /* so little off is nothing */

/* Work may take an eighth longer than was paid, and so much more; beside others, where it is known
 * less well, twice as long. */
#define AUDIT_ALONE_NS  (3 * MILLISECOND)
#define AUDIT_BESIDE_NS (40 * MILLISECOND)
#define AUDIT_MEMORY_NS (400 * MILLISECOND)

/* What is measured exactly is not true any more if others say so many times as much or as little
 * for so long. */
#define CHECK_TIMES 3
#define CHECK_NS    (100 * MILLISECOND)

#define WARY_TIMES 2 /* what was charged: longer than that is not as it should be */

/* What is charged at most for work that should be done and is not: it may wait for somebody. */
#define OVERDUE_NS      MILLISECOND /* it is that late, and an eighth of what was paid */
#define OVERDUE_MOST_NS (250 * MILLISECOND)

static void charge(struct governor *governor, int64_t short_ns)
{
    if (budget_charge(governor->shared, short_ns) < 0 && short_ns > 0)
        governor_return_credit(governor); /* nothing is begun on it while there is a debt */
}

void governor_correct(struct governor *governor, int64_t short_ns, uint64_t begun_ns)
{
    short_ns = governor_true_cost(governor, short_ns);
    if (begun_ns > governor->passed_ns)
        governor->corrected_ns += short_ns;
    else
        governor->late_ns += short_ns;
    charge(governor, short_ns);
}

static int has_measured(const struct governor *governor, uint64_t least_ns)
{
    return governor->overlap_paid_ns > least_ns || governor->overlap_busy_ns > least_ns;
}

void governor_forgive(struct governor *governor, int64_t too_much_ns)
{
    budget_forgive(governor->shared, too_much_ns);
}

int governor_wants_quiet(const struct governor *governor)
{
    if (!has_measured(governor, OVERLAP_EXACT_NS))
        return governor->overlap || governor->several;
    return governor->overlap && governor->overlap_exact < OVERLAP_EXACT_LASTS / 2;
}

/* How much is to be measured before it counts: where nobody else is there is time. */
static uint64_t least_for(const struct governor *governor, int exactly)
{
    return exactly && governor->beside ? OVERLAP_EXACT_NS : OVERLAP_LEAST_NS;
}

static void forget_overlap(struct governor *governor)
{
    governor->overlap_paid_ns = governor->overlap_busy_ns = 0;
    governor->overlap_exact = 0;
}

static void measure_anew(struct governor *governor)
{
    forget_overlap(governor);
    governor->anew_ns = governor_paid(governor);
}

void governor_overlap_anew(struct governor *governor)
{
    measure_anew(governor);
    /* By costs that were too high streams seemed to overlap, by as much. */
    if (governor->overlap < CLOCK_WHOLE)
        __atomic_store_n(&governor->overlap, 0, __ATOMIC_RELAXED);
}

/* Nothing in the period that follows upon what is finished was paid by costs of before. */
static int is_paid_anew(const struct governor *governor)
{
    return __atomic_load_n(&governor->finished_ns, __ATOMIC_RELAXED) >= governor->anew_ns;
}

static uint32_t ratio_of(uint64_t busy_ns, uint64_t paid_ns)
{
    double ratio = (double) busy_ns * CLOCK_WHOLE / (double) paid_ns;

    if (ratio < OVERLAP_LEAST)
        return OVERLAP_LEAST;
    if (ratio > OVERLAP_MOST)
        return OVERLAP_MOST;
    return (uint32_t) ratio;
}

static uint32_t unless_about_whole(uint32_t ratio)
{
    uint32_t off = ratio > CLOCK_WHOLE ? ratio - CLOCK_WHOLE : CLOCK_WHOLE - ratio;

    return off < CLOCK_WHOLE / OVERLAP_NONE_OF ? 0 : ratio;
}

/* The first ratio says how much is bought at once, and in pieces of another size streams overlap
 * otherwise: what counts then is measured by those. */
static void take_ratio(struct governor *governor)
{
    uint32_t ratio =
        unless_about_whole(ratio_of(governor->overlap_busy_ns, governor->overlap_paid_ns));

    if (ratio && !governor->overlap)
        measure_anew(governor);
    __atomic_store_n(&governor->overlap, ratio, __ATOMIC_RELAXED);
}

void governor_overlap(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns, int exactly)
{
    if (exactly && !governor->overlap_exact)
        forget_overlap(governor);
    if (exactly)
        governor->overlap_exact = (uint32_t) smaller(
            governor->overlap_exact + OVERLAP_EXACT_LASTS / 16, OVERLAP_EXACT_LASTS);
    else if (!has_measured(governor, OVERLAP_EXACT_NS))
        governor->overlap_exact = 0; /* it was too little to be exact */
    else if (governor->overlap_exact && governor->overlap_exact--)
        return;
    governor->overlap_paid_ns += paid_ns;
    governor->overlap_busy_ns += busy_ns;
    if (has_measured(governor, least_for(governor, exactly)))
        take_ratio(governor);
    if (has_measured(governor, OVERLAP_MEMORY_NS)) {
        governor->overlap_paid_ns /= 2;
        governor->overlap_busy_ns /= 2;
    }
}

/* What is more than was paid for long is to be paid, and 1. */
static int audit(struct governor *governor, int64_t paid_ns, int64_t busy_ns, int alone)
{
    int64_t short_ns;

    governor->audit_paid_ns += paid_ns;
    governor->audit_busy_ns += busy_ns;
    short_ns = governor->audit_busy_ns - governor->audit_paid_ns -
               governor->audit_paid_ns / (alone ? 8 : 1) -
               (alone ? AUDIT_ALONE_NS : AUDIT_BESIDE_NS);
    if (short_ns > 0) {
        charge(governor, alone ? governor->audit_busy_ns - governor->audit_paid_ns : short_ns);
        governor->audit_paid_ns = governor->audit_busy_ns = 0;
        return 1;
    }
    if (governor->audit_busy_ns > AUDIT_MEMORY_NS) {
        governor->audit_paid_ns /= 2;
        governor->audit_busy_ns /= 2;
    }
    return 0;
}

/* GPU time that a period took. */
struct took {
    int64_t least, most;
};

static int is_followed(const struct governor_period *period)
{
    return period->from_ns && !period->giving_ns;
}

/* Without a pause, if it was given at least twice as fast as it was done. */
static struct took took(const struct governor_period *period)
{
    struct took took = {0, INT64_MAX};
    uint64_t busy_ns = period->end_ns > period->from_ns ? period->end_ns - period->from_ns : 0;

    if (!period->from_ns)
        return took;
    took.most = took.least = budget_part((int64_t) busy_ns, period->rate);
    if (busy_ns < 2 * period->giving_ns)
        took.least = busy_ns > period->giving_ns
                         ? budget_part((int64_t) (busy_ns - period->giving_ns), period->rate)
                         : 0;
    return took;
}

/* How streams overlap was measured exactly, but now all of it takes far more or less. */
static void check_overlap(struct governor *governor, int64_t paid_ns, int64_t busy_ns)
{
    governor->check_paid_ns += paid_ns;
    governor->check_busy_ns += busy_ns;
    if (governor->check_paid_ns + governor->check_busy_ns < CHECK_NS)
        return;
    if (governor->check_paid_ns > CHECK_TIMES * governor->check_busy_ns ||
        governor->check_busy_ns > CHECK_TIMES * governor->check_paid_ns)
        governor_overlap_anew(governor);
    governor->check_paid_ns = governor->check_busy_ns = 0;
}

/* In several streams nobody knows what each launch takes, but what all of them took. */
static void settle(struct governor *governor, const struct governor_period *period,
                   struct took took, int64_t charged)
{
    int64_t paid = governor_true_cost(governor, (int64_t) period->paid_ns);

    if (governor->overlap_exact && !period->alone)
        check_overlap(governor, paid, within(paid, took.least, took.most));
    if (is_paid_anew(governor))
        governor_overlap(governor, period->paid_ns, (uint64_t) within(paid, took.least, took.most),
                         period->alone);
    if (!period->alone)
        return;
    charge(governor, within(charged, took.least, took.most) - charged);
    governor->settled_ns = period->given_ns;
}

/* A few measurements speak for many launches; alone, all of these together took no longer than the
 * time from the first to the last. What is far more is given back. */
static int64_t charged_at_most(struct governor *governor, const struct governor_period *period,
                               int64_t charged)
{
    int64_t most = (int64_t) (period->end_ns - period->from_ns);

    if (period->several || !period->alone || !period->from_ns || most <= 0 ||
        charged <= most + most / 8 + AUDIT_ALONE_NS)
        return charged;
    charge(governor, most - charged);
    governor->settled_ns = period->given_ns;
    return most;
}

int governor_period(struct governor *governor, const struct governor_period *period)
{
    struct took time = took(period);
    int64_t charged =
        governor_true_cost(governor, (int64_t) period->paid_ns) + governor->corrected_ns;
    int64_t late = governor->late_ns;
    /* What a guess is short of says nothing of what is known, and is corrected when it is seen. */
    int guessed = __atomic_load_n(&governor->unknown, __ATOMIC_RELAXED) != 0;

    charged = charged_at_most(governor, period, charged);
    governor->corrected_ns = governor->late_ns = 0;
    governor->passed_ns = period->given_ns;
    governor->beside = period->beside != 0;
    if (time.least <= WARY_TIMES * charged)
        governor->wary = 0;
    if (!is_followed(period) || guessed)
        governor->audit_paid_ns = governor->audit_busy_ns = late = 0;
    if (period->several && period->from_ns)
        settle(governor, period, time, charged);
    else if (governor->overlap && !period->several)
        governor_overlap(governor, period->paid_ns, period->paid_ns, 1);
    if ((period->several && period->alone) || guessed ||
        !audit(governor, charged + late, time.least, period->alone))
        return 0;
    governor_overlap_anew(governor);
    governor->settled_ns = period->given_ns;
    governor->wary = 1;
    return 1;
}

void governor_overdue(struct governor *governor, int64_t paid_ns, int64_t busy_ns)
{
    int64_t paid = governor_true_cost(governor, paid_ns);
    int64_t over = busy_ns - paid;

    if (over < paid / 8 + OVERDUE_NS)
        over = 0;
    over = smaller(over, OVERDUE_MOST_NS);
    if (over != governor->overdue_ns)
        charge(governor, over - governor->overdue_ns);
    governor->overdue_ns = over;
}
