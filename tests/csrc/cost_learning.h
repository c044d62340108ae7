/* SPDX-License-Identifier: Apache-2.0 */
/* cost_learning.h -- a cost model, and measurements for it: of launches alone and beside others. */
#ifndef PYVGPU_TESTS_COST_LEARNING_H
#define PYVGPU_TESTS_COST_LEARNING_H

#include "core/costs.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)

static struct costs costs;

static inline struct cost *make(struct costs_key key)
{
    return costs_make(&costs, &key, COSTS_GUESS_NS);
}

static inline int64_t expected(struct costs_key key)
{
    return costs_expect(make(key));
}

static inline void learn(struct costs_key key, struct costs_sample sample)
{
    costs_learn(&costs, make(key), &key, &sample);
}

static inline void learn_alone(struct costs_key key, int64_t ns)
{
    learn(key, (struct costs_sample) {.ns = ns, .most_ns = ns, .clock_ns = ns, .alone = 1});
}

/* Beside other processes, on a stream that had work before it. */
static inline void learn_queued(struct costs_key key, int64_t ns, int64_t clock_ns)
{
    learn(key, (struct costs_sample) {.ns = ns, .most_ns = ns, .clock_ns = clock_ns, .queued = 1});
}

#endif
