/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h -- token bucket of GPU time, shared by all processes of a container on a device.
 *
 * It is kept in the container's usage file (usage_compute.budget_ns), is signed, and fills at the
 * rate of the container's share. Its capacity is the share of a period that the caller gives.
 *
 * Pure; several processes may call any of it at the same time, and may be killed anywhere.
 */
#ifndef PYVGPU_CORE_BUDGET_H
#define PYVGPU_CORE_BUDGET_H

#include "core/region.h"

#define BUDGET_START_NS INT64_C(2000000) /* a container's first budget */

/* The fraction *part* / CLOCK_WHOLE of a time. */
static inline int64_t budget_part(int64_t ns, uint32_t part)
{
    return ns / CLOCK_WHOLE * part + ns % CLOCK_WHOLE * part / CLOCK_WHOLE;
}

static inline int64_t budget_left(const struct usage_compute *shared)
{
    return __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
}

/* Fill it up to *now* at *rate*, to at most the inflow of *keep_ns*. What exceeds that is saved, up
 * to the inflow of *save_ns* together with the budget. */
void budget_fill(struct usage_compute *shared, uint32_t rate, int64_t keep_ns, int64_t save_ns,
                 uint64_t now);

/* Add at most *ns* of what was saved. */
void budget_draw(struct usage_compute *shared, int64_t ns);

/* How long it takes to gain *ns*; long enough for the next refill to add it. */
int64_t budget_time_for(int64_t ns, uint32_t rate);

/* Charge *ns* for work that was begun, or, below 0, refund it. */
void budget_charge(struct usage_compute *shared, int64_t ns);

#endif
