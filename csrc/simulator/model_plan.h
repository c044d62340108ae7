/* SPDX-License-Identifier: Apache-2.0 */
/* model_plan.h -- what runs on each engine in one step, between model.c and model_accounts.c. */
#ifndef PYVGPU_SIMULATOR_MODEL_PLAN_H
#define PYVGPU_SIMULATOR_MODEL_PLAN_H

#include "model.h"

struct model_runner {
    struct model_lane *lane;
    struct model_work *work;
    uint64_t ticket;
    uint32_t wanted; /* of SMs */
    uint32_t given;  /* less: it is slower by that */
};

/* The lane or group, and its work, that run on one engine in a step. A group goes by its leader. */
struct model_plan {
    bool waiting;   /* some have work for it, */
    bool several;   /* more than one */
    uint32_t first; /* the lowest of them */
    uint32_t after; /* the lowest one behind the one whose turn it is */
    bool current;   /* the one whose turn it is has work */
    size_t count;
    struct model_runner runners[MODEL_RUNNERS];
};

/* Does some work of the plan occupy the engine? An event that waits for its lane's turn takes no
 * SM. */
static inline bool model_plan_takes_engine(const struct model_plan *plan, unsigned int engine)
{
    for (size_t i = 0; i < plan->count; i++)
        if (engine != ENGINE_SM || plan->runners[i].work->units)
            return true;
    return false;
}

/* Add the time from *from* until *until*, of the copy engines or the SMs, to a history. */
void model_accounts_busy(struct model_busy *history, uint64_t from, uint64_t until, bool copies);

/* Add *elapsed* to the used time of each lane that runs: once, on however many engines. */
void model_accounts_use(const struct model *model, const struct model_plan *plans,
                        uint64_t elapsed);

/* Add *elapsed* to the busy time of each lane of a group that ran, except the leader's. */
void model_accounts_members(struct model_plan *plan, const struct model_lane *leader,
                            uint64_t elapsed);

#endif
