/* SPDX-License-Identifier: Apache-2.0 */
/* model_accounts.c -- counts the time of a step for the device and its lanes; see model_plan.h. */
#include "model_plan.h"

void model_accounts_busy(struct model_busy *history, uint64_t from, uint64_t until, bool copies)
{
    uint64_t span = (uint64_t) MODEL_BUSY_STEPS << MODEL_BUSY_SHIFT;

    if (until - from > span)
        from = until - span;
    while (from < until) {
        uint64_t step = from >> MODEL_BUSY_SHIFT;
        uint64_t end = (step + 1) << MODEL_BUSY_SHIFT;
        struct model_busy *busy = &history[step % MODEL_BUSY_STEPS];

        if (end > until)
            end = until;
        if (busy->step != step)
            *busy = (struct model_busy) {.step = step};
        if (copies)
            busy->copy_ns += (uint32_t) (end - from);
        else
            busy->sm_ns += (uint32_t) (end - from);
        from = end;
    }
}

static bool is_used(const struct model *model, const struct model_plan *plan, unsigned int engine)
{
    return !model->device->turns[engine].switch_left && model_plan_takes_engine(plan, engine);
}

/* Is earlier work of the same lane running, on this engine or another? */
static bool is_counted(const struct model *model, const struct model_plan *plans,
                       unsigned int engine, size_t place)
{
    const struct model_lane *lane = plans[engine].runners[place].lane;

    for (unsigned int e = 0; e <= engine; e++)
        for (size_t i = 0; i < (e < engine ? plans[e].count : place); i++)
            if (is_used(model, &plans[e], e) && plans[e].runners[i].lane == lane)
                return true;
    return false;
}

void model_accounts_use(const struct model *model, const struct model_plan *plans, uint64_t elapsed)
{
    for (unsigned int e = 0; e < MODEL_ENGINES; e++)
        for (size_t i = 0; i < plans[e].count; i++)
            if (is_used(model, &plans[e], e) && !is_counted(model, plans, e, i))
                plans[e].runners[i].lane->used_ns += elapsed;
}

void model_accounts_members(struct model_plan *plan, const struct model_lane *leader,
                            uint64_t elapsed)
{
    for (size_t i = 0; i < plan->count; i++) {
        struct model_lane *lane = plan->runners[i].lane;
        bool counted = lane == leader || !plan->runners[i].work->units;

        for (size_t j = 0; j < i && !counted; j++)
            counted = plan->runners[j].lane == lane && plan->runners[j].work->units;
        if (!counted)
            lane->busy_ns += elapsed;
    }
}
