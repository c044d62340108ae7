/* SPDX-License-Identifier: Apache-2.0 */
/* model.c -- computes what ran on a device since the last call.
 *
 * One step goes from the device's now to the next change: work is done, a turn ends, work that was
 * submitted later arrives. A process may be killed between any two stores; ORDERED() keeps the
 * compiler from moving those whose order the repair relies on.
 */
#include "model.h"
#include "model_plan.h"

#include <stdatomic.h>
#include <string.h>

#define ORDERED() atomic_signal_fence(memory_order_seq_cst)

enum { STEPS_AT_ONCE = 4096 };

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
    if (!lane->enqueued && !lane->busy_ns && !lane->group)
        return;
    lane->group = lane->limit = 0;
    lane->filled = 0;
    ORDERED();
    memset(lane->head, 0, sizeof(lane->head));
    memset(lane->tail, 0, sizeof(lane->tail));
    memset(lane->history, 0, sizeof(lane->history));
    memset(lane->done_words, 0, sizeof(lane->done_words));
    memset(lane->done, 0, sizeof(lane->done));
    lane->enqueued = 0;
    lane->busy_ns = lane->used_ns = 0;
    lane->served = 0;
}

void model_join(struct model *model, uint32_t number, uint32_t leader, uint32_t limit)
{
    struct model_lane *lane = model->find_lane(model->context, number);

    lane->limit = limit;
    lane->group = leader + 1;
}

/* The lane that a turn of this lane goes by. */
static uint32_t leader_of(const struct model_lane *lane, uint32_t number)
{
    return lane->group ? lane->group - 1 : number;
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

static void note_waiting(struct model_plan *plan, const struct model_turn *turn, uint32_t leader)
{
    plan->several |= plan->waiting && leader != plan->first;
    if (!plan->waiting || leader < plan->first)
        plan->first = leader;
    plan->waiting = true;
    if (leader == turn->lane)
        plan->current = true;
    if (leader > turn->lane && leader < plan->after)
        plan->after = leader;
}

/* Choose the lane that has the turn. It keeps it until its slice ends and another one waits. */
static void choose_lane(struct model_plan *plan, struct model_turn *turn, unsigned int engine,
                        const struct model_law *law)
{
    uint32_t next = plan->after < MODEL_LANES ? plan->after : plan->first;

    if (plan->current && (turn->slice_left || !plan->several))
        return;
    turn->slice_left = law->slice_ns;
    if (next != turn->lane && engine == ENGINE_SM)
        turn->switch_left = law->switch_ns;
    turn->lane = next;
}

/* Among lanes of a group, a kernel that has begun keeps its SMs. */
static bool is_before(const struct model_runner *runner, const struct model_runner *other)
{
    if (runner->work->priority != other->work->priority)
        return runner->work->priority > other->work->priority;
    if (runner->lane->group && !runner->work->begun != !other->work->begun)
        return runner->work->begun;
    if (runner->lane->served != other->lane->served)
        return runner->lane->served < other->lane->served;
    return runner->ticket < other->ticket;
}

/* Collect the lane's work that is ready for the engine, in the order in which it may run. What is
 * too much has the lowest rank. */
static void collect_work(const struct model *model, struct model_lane *lane,
                         struct model_plan *plan, unsigned int engine)
{
    for (uint64_t left = lane->filled; left; left &= left - 1) {
        uint64_t ticket = lane->head[__builtin_ctzll(left)];
        struct model_work *work = model_work_of(lane, ticket);
        struct model_runner runner = {.lane = lane, .work = work, .ticket = ticket};
        size_t place = plan->count;

        if (!ticket || work->engine != engine || work->state != WORK_WAITING ||
            work->submitted > model->device->now || !is_free_to_run(lane, work, ticket))
            continue;
        if (place == MODEL_RUNNERS && !is_before(&runner, &plan->runners[--place]))
            continue;
        for (; place && is_before(&runner, &plan->runners[place - 1]); place--)
            plan->runners[place] = plan->runners[place - 1];
        plan->runners[place] = runner;
        if (plan->count < MODEL_RUNNERS)
            plan->count++;
    }
}

/* SMs that a lane's limit leaves, beside what its work before this one was given. */
static uint64_t left_of_limit(const struct model_runner *runners, size_t count,
                              const struct model_lane *lane, uint64_t units)
{
    uint64_t left = lane->limit && lane->limit < units ? lane->limit : units;

    for (size_t i = 0; i < count && lane->limit; i++)
        if (runners[i].lane == lane)
            left -= runners[i].given;
    return left;
}

/* Give the work of a lane its SMs, as long as all that it wants are free; that of a group what is
 * free. */
static void give_units(const struct model *model, struct model_plan *plan, unsigned int engine)
{
    uint64_t room = engine == ENGINE_SM ? model->device->units : 1;
    size_t kept = 0;

    for (size_t i = 0; i < plan->count; i++) {
        struct model_runner runner = plan->runners[i];
        uint64_t wanted = engine == ENGINE_SM ? runner.work->units : 1;
        uint64_t free = room;

        if (wanted > model->device->units)
            wanted = model->device->units;
        if (runner.lane->group && engine == ENGINE_SM && wanted) {
            uint64_t left = left_of_limit(plan->runners, kept, runner.lane, model->device->units);
            free = left < room ? left : room;
            if (!free)
                continue;
        } else if (wanted > room) {
            break;
        }
        runner.wanted = (uint32_t) wanted;
        runner.given = (uint32_t) (wanted < free ? wanted : free);
        room -= runner.given;
        plan->runners[kept++] = runner;
    }
    plan->count = kept;
}

/* Choose the work that runs on the engine now, of the lane or group that has the turn. */
static void choose_work(struct model *model, struct model_plan *plan, unsigned int engine)
{
    const struct model_turn *turn = &model->device->turns[engine];

    for (uint32_t word = 0; word < MODEL_LANES / 64; word++)
        for (uint64_t left = model->device->active[word]; left; left &= left - 1) {
            uint32_t number = word * 64 + (uint32_t) __builtin_ctzll(left);
            struct model_lane *lane = model->find_lane(model->context, number);

            if (leader_of(lane, number) == turn->lane)
                collect_work(model, lane, plan, engine);
        }
    give_units(model, plan, engine);
}

/* Time until the work is done if nothing changes, and the work done in a time. */
static uint64_t time_left(const struct model_runner *runner)
{
    uint64_t given = runner->given, wanted = runner->wanted;

    if (given == wanted)
        return runner->work->remaining;
    return (runner->work->remaining * wanted + given - 1) / given;
}

static void progress(struct model_runner *runner, uint64_t elapsed, uint64_t until)
{
    uint64_t done =
        runner->given == runner->wanted ? elapsed : elapsed * runner->given / runner->wanted;

    if (done < runner->work->remaining) {
        runner->work->remaining -= done;
        return;
    }
    runner->work->remaining = 0;
    runner->lane->served = until;
    finish(runner->lane, runner->ticket, until);
}

static void run_engine(struct model *model, struct model_plan *plan, unsigned int engine,
                       uint64_t until)
{
    struct model_device *device = model->device;
    struct model_turn *turn = &device->turns[engine];
    uint64_t elapsed = until - device->now;
    struct model_lane *lane = plan->runners[0].lane;

    if (lane->group) /* NVML sees the server alone at work */
        lane = model->find_lane(model->context, lane->group - 1);

    if (turn->switch_left) { /* no step goes beyond its end */
        turn->switch_left -= elapsed;
        return;
    }
    turn->slice_left -= elapsed < turn->slice_left ? elapsed : turn->slice_left;
    if (model_plan_takes_engine(plan, engine)) {
        model_accounts_busy(device->history, device->now, until, engine != ENGINE_SM);
        model_accounts_busy(lane->history, device->now, until, engine != ENGINE_SM);
        if (engine == ENGINE_SM) {
            device->busy_ns += elapsed;
            lane->busy_ns += elapsed;
            model_accounts_members(plan, lane, elapsed);
        } else {
            device->copy_busy_ns += elapsed;
        }
    }
    for (size_t i = 0; i < plan->count; i++) {
        struct model_runner *runner = &plan->runners[i];
        if (!runner->work->begun)
            runner->work->begun = device->now;
        progress(runner, elapsed, until);
    }
}

static void step(struct model *model, uint64_t now)
{
    struct model_plan plans[MODEL_ENGINES];
    struct model_device *device = model->device;
    uint64_t horizon = MODEL_NEVER;
    uint64_t until;

    for (unsigned int e = 0; e < MODEL_ENGINES; e++) {
        plans[e].waiting = plans[e].several = false;
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
                note_waiting(&plans[engine], &device->turns[engine], leader_of(lane, number));
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
        if (plans[e].several && device->now + device->turns[e].slice_left < horizon)
            horizon = device->now + device->turns[e].slice_left;
        for (size_t i = 0; i < plans[e].count; i++)
            if (device->now + time_left(&plans[e].runners[i]) < horizon)
                horizon = device->now + time_left(&plans[e].runners[i]);
    }
    until = horizon < now ? horizon : now;
    model_accounts_use(model, plans, until - device->now);
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
