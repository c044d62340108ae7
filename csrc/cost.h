/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h -- the cost of one key in the table of costs.h, and how it becomes certain.
 *
 * Pure, and as racy as the table.
 */
#ifndef PYVGPU_COST_H
#define PYVGPU_COST_H

#include "costs.h"

#define COST_MINIMUM_NS INT64_C(500)
#define COST_MAXIMUM_NS INT64_C(3600000000000)

int cost_is_certain(const struct cost *entry);

/* It is not, and would be if it were measured alone. */
int cost_wants_quiet(const struct cost *entry);

/* From here on other measurements count. */
void cost_become_uncertain(struct cost *entry);

/* The same, since it cannot be true: the next measurement is believed at once. */
void cost_distrust(struct cost *entry);

/* costs_learn() and costs_settle() of this entry. */
int64_t cost_learn(struct cost *entry, const struct costs_sample *sample);
int64_t cost_settle(struct cost *entry);

#endif
