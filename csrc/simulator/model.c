/* SPDX-License-Identifier: Apache-2.0 */
/* model.c -- computes what ran on a device since the last call.
 *
 * One step goes from the device's now to the next change: work is done, a turn ends, work that was
 * submitted later arrives. A process may be killed between any two stores; ORDERED() keeps the
 * compiler from moving those whose order the repair relies on.
 */
#include "model.h"

#include <stdatomic.h>
#include <string.h>

#define ORDERED() atomic_signal_fence(memory_order_seq_cst)

enum { STEPS_AT_ONCE = 4096 };

struct runner {
    struct model_lane *lane;
    struct model_work *work;
    uint64_t ticket;
};

/* The lane and work that run on one engine in a step. */
struct engine_plan {
    uint32_t waiting; /* lanes with work for it */
    uint32_t first;   /* the lowest of them */
    uint32_t after;   /* the lowest one behind the lane whose turn it is */
    bool current;     /* the lane whose turn it is has work */
    size_t count;
    struct runner runners[MODEL_QUEUES];
};

bool model_is_done(const struct model_lane *lane, uint64_t ticket)
{
    const struct model_work *work = &lane->places[ticket % MODEL_PLACES];

    return !ticket || work->ticket != ticket || work->state == WORK_DONE;
}

static void set_active(struct model_device *device, uint32_t lane, bool active)
{
    uint64_t bit = UINT64_C(1) << lane % 64;

    if (active)
        device->active[lane / 64] |= bit;
    else
        device->active[lane / 64] &= ~bit;
}

void model_reset_lane(struct model *model, uint32_t number)
{
    struct model_lane *lane = model->find_lane(model->context, number);

    set_active(model->device, number, false);
    if (!lane->enqueued && !lane->busy_ns)
        return;
    lane->filled = 0;
    ORDERED();
    memset(lane->head, 0, sizeof(lane->head));
    memset(lane->tail, 0, sizeof(lane->tail));
    memset(lane->history, 0, sizeof(lane->history));
    memset(lane->done_words, 0, sizeof(lane->done_words));
    memset(lane->done, 0, sizeof(lane->done));
    lane->enqueued = 0;
    lane->busy_ns = lane->used_ns = 0;
}

/* The work that had the place may still be its queue's head, if the process that finished it was
 * killed. */
static void leave_queue(struct model_lane *lane, const struct model_work *work)
{
    if (work->ticket && lane->head[work->queue] == work->ticket)
        lane->head[work->queue] = work->next;
}

uint64_t model_enqueue(struct model *model, uint32_t number, uint32_t place,
                       const struct model_work *work)
{
    struct model_lane *lane = model->find_lane(model->context, number);
    struct model_work *here = &lane->places[place];
    uint64_t ticket = (lane->enqueued + 1) * MODEL_PLACES + place;
    uint64_t *tail = &lane->tail[work->queue];

    leave_queue(lane, here);
    ORDERED();
    *here = *work;
    here->ticket = ticket;
    here->state = WORK_WAITING;
    here->begun = here->next = 0;
    ORDERED();
    lane->enqueued++;
    if (lane->head[work->queue])
        model_work_of(lane, *tail)->next = ticket;
    else
        lane->head[work->queue] = ticket;
    *tail = ticket;
    lane->filled |= UINT64_C(1) << work->queue;
    set_active(model->device, number, true);
    return ticket;
}

static void note_done(struct model_lane *lane, uint64_t place)
{
    lane->done[place / 64] |= UINT64_C(1) << place % 64;
    ORDERED();
    lane->done_words[place / 4096] |= UINT64_C(1) << place / 64 % 64;
}

bool model_take_done(struct model_lane *lane, uint32_t *place)
{
    for (uint32_t i = 0; i < MODEL_DONE_WORDS / 64; i++)
        while (lane->done_words[i]) {
            uint32_t word = i * 64 + (uint32_t) __builtin_ctzll(lane->done_words[i]);

            if (lane->done[word]) {
                *place = word * 64 + (uint32_t) __builtin_ctzll(lane->done[word]);
                lane->done[word] &= lane->done[word] - 1;
                return true;
            }
            lane->done_words[i] &= lane->done_words[i] - 1;
        }
    return false;
}

static void finish(struct model_lane *lane, uint64_t ticket, uint64_t when)
{
    struct model_work *work = model_work_of(lane, ticket);

    work->finished = when;
    note_done(lane, ticket % MODEL_PLACES);
    ORDERED();
    work->state = WORK_DONE;
    ORDERED();
    lane->head[work->queue] = work->next;
}

/* Do the other queues allow the head of this one to run? */
static bool is_free_to_run(const struct model_lane *lane, const struct model_work *work,
                           uint64_t ticket)
{
    uint64_t ordered;

    if (work->after && !model_is_done(lane, work->after))
        return false;
    if (work->queue >= MODEL_FIRST_UNORDERED)
        return true;
    if (work->queue != 0)
        return !lane->head[0] || lane->head[0] > ticket;
    ordered = lane->filled & ((UINT64_C(1) << MODEL_FIRST_UNORDERED) - 1) & ~UINT64_C(1);
    for (; ordered; ordered &= ordered - 1) {
        uint64_t head = lane->head[__builtin_ctzll(ordered)];
        if (head && head < ticket)
            return false;
    }
    return true;
}

/* Start a mark that has reached the head. False: it needs no engine. */
static bool settle_timed(struct model_lane *lane, uint64_t ticket, uint64_t now, uint64_t *horizon,
                         bool *changed)
{
    uint64_t end = model_work_of(lane, ticket)->finished;

    if (end <= now) {
        finish(lane, ticket, end);
        *changed = true;
    } else if (end < *horizon) {
        *horizon = end;
    }
    return false;
}

/* Settle one queue's head. True if it is ready for an engine; changed if it was finished here. */
static bool settle_head(struct model_lane *lane, unsigned int queue, uint64_t now,
                        uint64_t *horizon, bool *changed)
{
    uint64_t ticket = lane->head[queue];
    struct model_work *work;

    if (!ticket) {
        lane->filled &= ~(UINT64_C(1) << queue);
        return false;
    }
    work = model_work_of(lane, ticket);
    if (work->state == WORK_DONE) { /* the process that finished it was killed: repair */
        lane->head[queue] = work->next;
        *changed = true;
        return false;
    }
    if (work->state == WORK_AT_GATE)
        return false;
    if (work->state == WORK_TIMED)
        return settle_timed(lane, ticket, now, horizon, changed);
    if (work->submitted > now) {
        if (work->submitted < *horizon)
            *horizon = work->submitted;
        return false;
    }
    if (!is_free_to_run(lane, work, ticket))
        return false;
    if (work->engine == ENGINE_GATE) {
        work->finished = now;
        ORDERED();
        work->state = WORK_AT_GATE;
        return false;
    }
    if (work->remaining == 0) {
        work->begun = now;
        finish(lane, ticket, now);
        *changed = true;
        return false;
    }
    if (work->engine >= MODEL_ENGINES) {
        work->finished = now + work->remaining;
        ORDERED();
        work->state = WORK_TIMED;
        return settle_timed(lane, ticket, now, horizon, changed);
    }
    return true;
}

/* Finish work that needs no time; returns a bit for each engine that the rest is ready for. */
static unsigned int settle_lane(struct model_lane *lane, uint64_t now, uint64_t *horizon)
{
    unsigned int engines;
    bool changed;

    do {
        engines = 0;
        changed = false;
        for (uint64_t left = lane->filled; left; left &= left - 1) {
            unsigned int queue = (unsigned int) __builtin_ctzll(left);
            if (settle_head(lane, queue, now, horizon, &changed))
                engines |= 1U << model_work_of(lane, lane->head[queue])->engine;
        }
    } while (changed);
    return engines;
}

static void note_waiting(struct engine_plan *plan, const struct model_turn *turn, uint32_t lane)
{
    if (!plan->waiting++)
        plan->first = lane;
    if (lane == turn->lane)
        plan->current = true;
    if (lane > turn->lane && plan->after == MODEL_LANES)
        plan->after = lane;
}

/* Choose the lane that has the turn. It keeps it until its slice ends and another one waits. */
static void choose_lane(struct engine_plan *plan, struct model_turn *turn, unsigned int engine,
                        const struct model_law *law)
{
    uint32_t next = plan->after < MODEL_LANES ? plan->after : plan->first;

    if (plan->current && (turn->slice_left || plan->waiting == 1))
        return;
    turn->slice_left = law->slice_ns;
    if (next != turn->lane && engine == ENGINE_SM)
        turn->switch_left = law->switch_ns;
    turn->lane = next;
}

static bool is_before(const struct runner *runner, const struct runner *other)
{
    if (runner->work->priority != other->work->priority)
        return runner->work->priority > other->work->priority;
    return runner->ticket < other->ticket;
}

/* Choose the lane's work that runs on the engine now: by priority, then in the order of
 * submission, as long as SMs are free. */
static void choose_work(struct model *model, struct engine_plan *plan, unsigned int engine)
{
    const struct model_turn *turn = &model->device->turns[engine];
    struct model_lane *lane = model->find_lane(model->context, turn->lane);
    uint64_t room = engine == ENGINE_SM ? model->device->units : 1;
    size_t kept = 0;

    for (uint64_t left = lane->filled; left; left &= left - 1) {
        uint64_t ticket = lane->head[__builtin_ctzll(left)];
        struct model_work *work = model_work_of(lane, ticket);
        struct runner runner = {lane, work, ticket};
        size_t place = plan->count;

        if (!ticket || work->engine != engine || work->state != WORK_WAITING ||
            work->submitted > model->device->now || !is_free_to_run(lane, work, ticket))
            continue;
        for (; place && is_before(&runner, &plan->runners[place - 1]); place--)
            plan->runners[place] = plan->runners[place - 1];
        plan->runners[place] = runner;
        plan->count++;
    }
    for (; kept < plan->count; kept++) {
        uint64_t units = plan->runners[kept].work->units;
        if (units > model->device->units)
            units = model->device->units;
        if (engine != ENGINE_SM)
            units = 1;
        if (units > room)
            break;
        room -= units;
    }
    plan->count = kept;
}

static void note_busy(struct model_busy *history, uint64_t from, uint64_t until, bool copies)
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

/* Events that wait for their lane's turn take no SM. */
static bool takes_engine(const struct engine_plan *plan, unsigned int engine)
{
    for (size_t i = 0; i < plan->count; i++)
        if (engine != ENGINE_SM || plan->runners[i].work->units)
            return true;
    return false;
}

static bool is_used(const struct model *model, const struct engine_plan *plan, unsigned int engine)
{
    return !model->device->turns[engine].switch_left && takes_engine(plan, engine);
}

/* A lane that runs on several engines at once uses the time once. */
static void note_use(const struct model *model, const struct engine_plan *plans, uint64_t elapsed)
{
    for (unsigned int e = 0; e < MODEL_ENGINES; e++) {
        bool counted = !is_used(model, &plans[e], e);

        for (unsigned int before = 0; before < e && !counted; before++)
            counted = is_used(model, &plans[before], before) &&
                      plans[before].runners[0].lane == plans[e].runners[0].lane;
        if (!counted)
            plans[e].runners[0].lane->used_ns += elapsed;
    }
}

static void run_engine(struct model *model, struct engine_plan *plan, unsigned int engine,
                       uint64_t until)
{
    struct model_device *device = model->device;
    struct model_turn *turn = &device->turns[engine];
    uint64_t elapsed = until - device->now;
    struct model_lane *lane = plan->runners[0].lane;

    if (turn->switch_left) { /* no step goes beyond its end */
        turn->switch_left -= elapsed;
        return;
    }
    turn->slice_left -= elapsed < turn->slice_left ? elapsed : turn->slice_left;
    if (takes_engine(plan, engine)) {
        note_busy(device->history, device->now, until, engine != ENGINE_SM);
        note_busy(lane->history, device->now, until, engine != ENGINE_SM);
        if (engine == ENGINE_SM) {
            device->busy_ns += elapsed;
            lane->busy_ns += elapsed;
        } else {
            device->copy_busy_ns += elapsed;
        }
    }
    for (size_t i = 0; i < plan->count; i++) {
        struct runner *runner = &plan->runners[i];
        if (!runner->work->begun)
            runner->work->begun = device->now;
        runner->work->remaining -= elapsed;
        if (!runner->work->remaining)
            finish(runner->lane, runner->ticket, until);
    }
}

static void step(struct model *model, uint64_t now)
{
    struct engine_plan plans[MODEL_ENGINES];
    struct model_device *device = model->device;
    uint64_t horizon = MODEL_NEVER;
    uint64_t until;

    for (unsigned int e = 0; e < MODEL_ENGINES; e++) {
        plans[e].waiting = 0;
        plans[e].after = MODEL_LANES;
        plans[e].current = false;
        plans[e].count = 0;
    }
    for (uint32_t word = 0; word < MODEL_LANES / 64; word++) {
        for (uint64_t left = device->active[word]; left; left &= left - 1) {
            uint32_t number = word * 64 + (uint32_t) __builtin_ctzll(left);
            struct model_lane *lane = model->find_lane(model->context, number);
            unsigned int engines = settle_lane(lane, device->now, &horizon);

            if (!lane->filled)
                set_active(device, number, false);
            for (; engines; engines &= engines - 1) {
                unsigned int engine = (unsigned int) __builtin_ctz(engines);
                note_waiting(&plans[engine], &device->turns[engine], number);
            }
        }
    }
    for (unsigned int e = 0; e < MODEL_ENGINES; e++) {
        if (!plans[e].waiting)
            continue;
        choose_lane(&plans[e], &device->turns[e], e, &model->law);
        choose_work(model, &plans[e], e);
        if (device->turns[e].switch_left) {
            if (device->now + device->turns[e].switch_left < horizon)
                horizon = device->now + device->turns[e].switch_left;
            continue;
        }
        if (plans[e].waiting > 1 && device->now + device->turns[e].slice_left < horizon)
            horizon = device->now + device->turns[e].slice_left;
        for (size_t i = 0; i < plans[e].count; i++)
            if (device->now + plans[e].runners[i].work->remaining < horizon)
                horizon = device->now + plans[e].runners[i].work->remaining;
    }
    until = horizon < now ? horizon : now;
    note_use(model, plans, until - device->now);
    for (unsigned int e = 0; e < MODEL_ENGINES; e++)
        if (plans[e].count)
            run_engine(model, &plans[e], e, until);
    device->next_event = horizon;
    ORDERED();
    device->now = until;
}

bool model_advance(struct model *model, uint64_t now)
{
    struct model_device *device = model->device;

    for (unsigned int steps = 0; steps < STEPS_AT_ONCE; steps++) {
        uint64_t before = device->now;

        if (device->now > now)
            return true;
        step(model, now);
        /* At now, and nothing finished at this very moment that lets something else go on. */
        if (device->now == now && before == now && device->next_event > now)
            return true;
    }
    return false;
}

void model_open_gate(struct model *model, uint32_t number, uint64_t ticket, uint64_t now)
{
    finish(model->find_lane(model->context, number), ticket, now);
}

uint64_t model_earliest(const struct model *model, uint32_t number, uint64_t ticket)
{
    struct model_lane *lane = model->find_lane(model->context, number);
    const struct model_device *device = model->device;
    uint64_t t = lane->head[model_work_of(lane, ticket)->queue];
    uint64_t sum = device->now;

    for (unsigned int hops = 0; t && t <= ticket && hops < MODEL_PLACES; hops++) {
        const struct model_work *work = model_work_of(lane, t);
        sum += work->state == WORK_WAITING ? work->remaining : 0;
        t = work->next;
    }
    if (sum < device->next_event && device->next_event != MODEL_NEVER)
        return device->next_event;
    return sum;
}

unsigned int model_active(const struct model_device *device)
{
    unsigned int count = 0;

    for (size_t word = 0; word < MODEL_LANES / 64; word++)
        count += (unsigned int) __builtin_popcountll(device->active[word]);
    return count;
}
