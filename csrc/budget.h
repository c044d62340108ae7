/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h -- what all processes of a container may still begin on a device.
 *
 * It lies in the container's usage file (usage_compute.budget_ns), is signed, and fills at the rate
 * of the container's share. Time without work leaves a little in it, so that work which comes again
 * begins at once and no more than that; time with work leaves more, since then others had the
 * device.
 *
 * Pure; several processes may call all of it at a time, and may be killed anywhere.
 */
#ifndef PYVGPU_BUDGET_H
#define PYVGPU_BUDGET_H

#include "region.h"

#define BUDGET_BURST_NS INT64_C(2000000) /* what idle time leaves in it */

/* *part* of CLOCK_WHOLE of some time. */
static inline int64_t budget_part(int64_t ns, uint32_t part)
{
    return ns / CLOCK_WHOLE * part + ns % CLOCK_WHOLE * part / CLOCK_WHOLE;
}

static inline void word_raise(uint64_t *word, uint64_t value)
{
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Fill it up to *now* at *rate*; *hushed*: the container was to begin nothing. */
void budget_fill(struct usage_compute *shared, uint32_t rate, int hushed, uint64_t now);

/* Take *price_ns* from it if there is more in it than *floor*; what was there before. */
int64_t budget_take(struct usage_compute *shared, int64_t price_ns, int64_t floor);

/* How long it takes to gain *ns*, and long enough that it is added. */
int64_t budget_time_for(int64_t ns, uint32_t rate);

/* Charge *short_ns* for what was begun (below 0: give it back); what is in it then. */
int64_t budget_charge(struct usage_compute *shared, int64_t short_ns);

/* Give back up to *ns* of what is owed. */
void budget_forgive(struct usage_compute *shared, int64_t ns);

/* The container has work until *until_ns*, as far as can be foreseen; or not that long. */
void budget_active(struct usage_compute *shared, uint64_t until_ns);
void budget_active_no_longer(struct usage_compute *shared, uint64_t until_ns);

/* It had work from one moment until the other, as was seen afterwards. If there was a pause before
 * that, it stays one. */
void budget_active_between(struct usage_compute *shared, uint64_t from_ns, uint64_t until_ns);

#endif
