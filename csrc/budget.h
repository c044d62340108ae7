/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h -- a token bucket: what all processes of a container may still begin on a device.
 *
 * It lies in the container's usage file (usage_compute.budget_ns), is signed, and fills at the rate
 * of the container's share, up to what the share comes to in a time that the caller names.
 *
 * Pure; several processes may call all of it at a time, and may be killed anywhere.
 */
#ifndef PYVGPU_BUDGET_H
#define PYVGPU_BUDGET_H

#include "region.h"

#define BUDGET_START_NS INT64_C(2000000) /* what a container begins with */

/* *part* of CLOCK_WHOLE of some time. */
static inline int64_t budget_part(int64_t ns, uint32_t part)
{
    return ns / CLOCK_WHOLE * part + ns % CLOCK_WHOLE * part / CLOCK_WHOLE;
}

static inline int64_t budget_left(const struct usage_compute *shared)
{
    return __atomic_load_n(&shared->budget_ns, __ATOMIC_RELAXED);
}

/* Fill it up to *now* at *rate*, but to no more than comes in within *keep_ns*. */
void budget_fill(struct usage_compute *shared, uint32_t rate, int64_t keep_ns, uint64_t now);

/* How long it takes to gain *ns*, and long enough that it is added. */
int64_t budget_time_for(int64_t ns, uint32_t rate);

/* Take *ns* for what was begun, or, below 0, give it back. */
void budget_charge(struct usage_compute *shared, int64_t ns);

#endif
