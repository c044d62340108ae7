/* SPDX-License-Identifier: Apache-2.0 */
/* share_world.c -- runs scenes in virtual time; see share_world.h. */
#include "share_world.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "arbiter/fluid.h"
#include "arbiter/page.h"
#include "clock.h"
#include "costs.h"
#include "governor.h"
#include "simulator/model.h"

#define NEVER     UINT64_MAX
#define LAUNCH_NS (2 * WORLD_US) /* of the program's own time */
#define SLEEP_NS  (50 * WORLD_MS)
#define LOOK_NS   (2 * WORLD_MS) /* between two looks at the clock */
#define SOON_NS   (WORLD_MS / 2) /* in quiet moments */
#define TICK_NS   (5 * WORLD_MS)
#define QUIET_NS  WORLD_MS

#define WISH_NS       (200 * WORLD_MS)
#define WISH_AFTER_NS (3 * WORLD_MS / 2)

enum { PROCESSES = 64, MARKS = 128, AT_ONCE = 4, ROOM = 3 + WORLD_STREAMS };

struct mark { /* of everything before it, on all streams */
    uint64_t paid;
    uint64_t begun; /* what was paid at the mark before */
    uint64_t begin; /* ticket; 0: only one stream was touched */
    uint64_t given_ns;
    uint64_t ends[WORLD_STREAMS];
};

struct sample {
    uint64_t key, begin, end;
    struct costs_quote quote;
};

struct process {
    unsigned tenant, lane;
    uint32_t slot; /* among the processes of its container */
    struct governor governor;
    struct costs costs;
    struct usage_work work;
    struct clock_view clock;
    uint64_t looked_ns;
    uint64_t wake_ns; /* NEVER: it waits for a ticket */
    uint64_t awaited; /* the ticket; 0: none */
    uint64_t syncing; /* what was paid when it began to wait for all its work; 0: it does not */
    uint64_t waits_since;
    uint64_t launches;
    bool pending; /* a launch is worked out, and not yet paid */
    struct costs_quote quote;
    unsigned touched; /* streams, since the last mark, a bit each */
    uint64_t begin;   /* of those, the first event */
    uint64_t last_paid;
    uint64_t last_end_ns;
    uint64_t latest[WORLD_STREAMS]; /* tickets */
    struct mark marks[MARKS];
    unsigned mark_first, mark_count;
    struct sample samples[WORLD_SAMPLES];
    unsigned sample_first, sample_count;
    uint64_t done_ns[MODEL_RING]; /* by ticket */
};

static struct {
    const struct scene *scene;
    uint64_t now;
    uint32_t random;
    struct model_device device;
    struct model_lane lanes[PROCESSES];
    struct model model;
    struct process processes[PROCESSES];
    unsigned process_count, tenant_count;
    unsigned vcore[WORLD_TENANTS];
    struct usage_compute compute[WORLD_TENANTS];
    struct fluid fluid;
    struct fluid_lane fluid_lanes[PROCESSES];
    struct fluid_tenant fluid_tenants[WORLD_TENANTS];
    struct clock_file pages[WORLD_TENANTS];
    uint64_t tick_ns;
    uint64_t *work[WORLD_TENANTS];
    size_t steps;
} world;

static struct model_lane *find_lane(void *context, uint32_t lane)
{
    (void) context;
    return &world.lanes[lane];
}

static uint64_t passed(void)
{
    return world.now - WORLD_BOOT;
}

static const struct tenant_plan *plan_of(const struct process *process)
{
    return &world.scene->tenants[process->tenant];
}

static uint32_t random_number(void)
{
    world.random = world.random * 1664525u + 1013904223u;
    return world.random >> 8;
}

static uint64_t late(void)
{
    return world.scene->late_ns ? random_number() % world.scene->late_ns : 0;
}

/* ---- the driver: tickets, and when they were done */

static bool is_done(const struct process *process, uint64_t ticket)
{
    return !ticket || model_is_done(&world.lanes[process->lane], ticket);
}

static void retire(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];
    uint64_t ticket = lane->retired;

    while (ticket < lane->enqueued && model_is_done(lane, ticket + 1)) {
        ticket++;
        process->done_ns[ticket % MODEL_RING] = lane->ring[ticket % MODEL_RING].finished;
    }
    model_retire(&world.model, process->lane, ticket);
}

static uint64_t enqueue(struct process *process, unsigned stream, uint64_t length, unsigned units)
{
    struct model_work work = {.submitted = world.now,
                              .remaining = length,
                              .units = units,
                              .engine = length ? ENGINE_SM : ENGINE_NONE,
                              .queue = (uint8_t) (1 + stream)};
    uint64_t ticket = model_enqueue(&world.model, process->lane, &work);

    if (!ticket)
        abort();
    process->latest[stream] = ticket;
    return ticket;
}

static bool has_room(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];

    retire(process);
    return lane->enqueued - lane->retired + ROOM < MODEL_RING;
}

/* ---- the shim: marks and measurements */

static uint32_t rate_between(struct process *process, uint64_t begin, uint64_t end)
{
    return clock_rate(&process->clock, begin, end, world.now);
}

static void look_at_clock(struct process *process)
{
    bool soon = process->governor.wishes || clock_hush(&process->clock, world.now);

    if (world.now - process->looked_ns < (soon ? SOON_NS : LOOK_NS) ||
        world.scene->arbiter == ARBITER_ABSENT)
        return;
    process->looked_ns = world.now;
    clock_judge(&process->clock, &world.pages[process->tenant], world.now);
}

/* When was it done? Tickets older than the ring were done long ago, and were looked at then. */
static uint64_t done_at(const struct process *process, uint64_t ticket)
{
    return process->done_ns[ticket % MODEL_RING];
}

/* As the shim does: what the clock says of later is foreseen only. */
static bool awaits_clock(const struct process *process, const struct sample *sample)
{
    uint64_t end = done_at(process, sample->end);

    return process->clock.valid && !(sample->quote.stands_for & COSTS_GUESSED) &&
           process->sample_count < 96 && !clock_covers(&process->clock, end) &&
           world.now - end < 30 * WORLD_MS;
}

/* Is none of what was measured and is not yet seen uncertain? */
static bool is_content(struct process *process)
{
    if (governor_wants_quiet(&process->governor))
        return false;
    for (unsigned i = 1; i < process->sample_count; i++)
        if (costs_want_quiet(&process->costs,
                             process->samples[(process->sample_first + i) % WORLD_SAMPLES].key))
            return false;
    return true;
}

static void wish(struct process *process, const struct sample *sample,
                 const struct costs_sample *measured)
{
    if (measured->sharers > 1 && costs_want_quiet(&process->costs, sample->key))
        governor_wish(&process->governor, world.now + WISH_NS + 8 * (uint64_t) measured->elapsed_ns,
                      (uint64_t) measured->elapsed_ns, process->slot);
    else if (is_content(process))
        governor_wish_no_more(&process->governor, world.now + WISH_AFTER_NS, process->slot);
}

static bool finish_samples(struct process *process)
{
    bool any = false;

    while (process->sample_count) {
        struct sample *sample = &process->samples[process->sample_first % WORLD_SAMPLES];
        struct costs_sample measured;
        uint64_t begin, end;
        int64_t missing;
        bool certain;

        if (sample->end > world.lanes[process->lane].retired || awaits_clock(process, sample))
            break;
        begin = done_at(process, sample->begin);
        end = done_at(process, sample->end);
        measured =
            (struct costs_sample) {.paid_ns = sample->quote.cost_ns,
                                   .stands_for = sample->quote.stands_for,
                                   .elapsed_ns = (int64_t) (end - begin),
                                   .rate = rate_between(process, begin, end),
                                   .sharers = clock_sharers(&process->clock),
                                   .alone = clock_alone(&process->clock, begin, end, world.now)};
        certain = costs_are_certain(&process->costs, sample->key);
        missing = costs_learn(&process->costs, sample->key, &measured);
        governor_correct(&process->governor, missing);
        if (!certain && costs_are_certain(&process->costs, sample->key))
            governor_overlap_anew(&process->governor);
        if (sample->quote.stands_for & COSTS_GUESSED)
            governor_unknown(&process->governor, -1);
        wish(process, sample, &measured);
        process->sample_first++;
        process->sample_count--;
        any = true;
    }
    return any;
}

static bool mark_is_done(const struct process *process, const struct mark *mark)
{
    for (unsigned s = 0; s < WORLD_STREAMS; s++)
        if (mark->ends[s] > world.lanes[process->lane].retired)
            return false;
    return true;
}

static void note_overlap(struct process *process, const struct mark *mark, uint64_t begin,
                         uint64_t end)
{
    uint64_t paid = mark->paid - mark->begun;

    if (!mark->begin)
        governor_overlap(&process->governor, paid, paid, 1);
    else if (begin < end)
        governor_overlap(
            &process->governor, paid,
            (uint64_t) ((double) (end - begin) / CLOCK_WHOLE * rate_between(process, begin, end)),
            clock_alone(&process->clock, begin, end, world.now));
    if (governor_wants_quiet(&process->governor) && clock_sharers(&process->clock) > 1)
        governor_wish(&process->governor, world.now + WISH_NS, 10 * WORLD_MS, process->slot);
}

static void account(struct process *process, const struct mark *mark, uint64_t end)
{
    uint64_t before = process->last_end_ns;
    bool follows = before && mark->given_ns <= before && end > before;
    uint64_t begin = before;

    if (!follows && mark->begin && done_at(process, mark->begin) > begin)
        begin = done_at(process, mark->begin);
    if (mark->begin || process->governor.overlap)
        note_overlap(process, mark, begin, end);
    if (!follows)
        governor_audit_anew(&process->governor);
    else if (governor_audit(&process->governor, mark->paid - mark->begun,
                            (uint64_t) ((double) (end - before) / CLOCK_WHOLE *
                                        rate_between(process, before, end)),
                            clock_alone(&process->clock, before, end, world.now)))
        costs_distrust(&process->costs);
}

static void finish_mark(struct process *process, const struct mark *mark)
{
    uint64_t end = 0;

    for (unsigned s = 0; s < WORLD_STREAMS; s++)
        if (mark->ends[s] && done_at(process, mark->ends[s]) > end)
            end = done_at(process, mark->ends[s]);
    governor_finish(&process->governor, mark->paid, world.now);
    account(process, mark, end);
    process->last_end_ns = end;
}

static bool look_at_marks(struct process *process)
{
    bool any;

    retire(process);
    any = finish_samples(process);
    while (process->mark_count) {
        struct mark *mark = &process->marks[process->mark_first % MARKS];

        if (!mark_is_done(process, mark))
            break;
        finish_mark(process, mark);
        process->mark_first++;
        process->mark_count--;
        any = true;
    }
    return any;
}

static void put_mark(struct process *process)
{
    struct mark *mark = &process->marks[(process->mark_first + process->mark_count) % MARKS];

    if (!process->touched || process->mark_count == MARKS)
        return;
    memset(mark, 0, sizeof(*mark));
    mark->paid = governor_paid(&process->governor);
    mark->begun = process->last_paid;
    mark->given_ns = world.now;
    mark->begin = process->touched & (process->touched - 1) ? process->begin : 0;
    for (unsigned s = 0; s < WORLD_STREAMS; s++)
        if (process->touched & 1u << s)
            mark->ends[s] = enqueue(process, s, 0, 0);
    process->last_paid = mark->paid;
    process->touched = 0;
    process->mark_count++;
}

static struct governor_share share_of(const struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);
    struct governor_share share = {.own = world.vcore[process->tenant] * CLOCK_WHOLE / 100};

    share.limit = plan->limit ? plan->limit * CLOCK_WHOLE / 100 : share.own;
    share.lent = plan->limit ? clock_lent(&process->clock, world.now) : 0;
    share.quiet = (uint32_t) clock_is_quiet(&process->clock, world.now);
    share.hush_ns = clock_hush(&process->clock, world.now);
    return share;
}

static void wait_for_ticket(struct process *process, uint64_t ticket)
{
    process->awaited = ticket;
    process->wake_ns = NEVER;
}

/* Tickets are looked at in their order, so one that is done may still wait for one before it. */
static uint64_t oldest_unfinished(const struct process *process)
{
    return process->mark_count ? world.lanes[process->lane].retired + 1 : 0;
}

/* True when the launch is paid; else the process waits. */
static bool pay_slowly(struct process *process)
{
    struct governor_share share;
    uint64_t until;
    bool full = false;

    look_at_clock(process);
    look_at_marks(process);
    put_mark(process);
    share = share_of(process);
    switch (governor_buy(&process->governor, &share, process->quote.cost_ns, world.now, &until)) {
    case GOVERNOR_GO:
        return true;
    case GOVERNOR_FULL:
        until = world.now + WORLD_MS / 2; /* as the shim looks again */
        full = true;
        break;
    case GOVERNOR_WAIT:
        break;
    }
    if (full && oldest_unfinished(process)) {
        wait_for_ticket(process, oldest_unfinished(process));
        return false;
    }
    if (full)
        abort();
    governor_waits(&process->governor);
    if (until > world.now + SLEEP_NS)
        until = world.now + SLEEP_NS;
    process->wake_ns = until + late();
    return false;
}

/* ---- the program */

static uint64_t length_of(const struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);

    if (plan->other_ns && process->launches % 2)
        return plan->other_ns;
    return plan->later_ns && passed() >= plan->change_ns ? plan->later_ns : plan->length_ns;
}

static uint64_t key_of(const struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);

    if (plan->fresh)
        return costs_key(0x100000 + process->launches, 0);
    return costs_key(0x1000, plan->other_ns ? process->launches % 2 : 0);
}

static bool ask(struct process *process)
{
    process->quote = costs_ask(&process->costs, key_of(process), COSTS_GUESS_NS);
    if (process->quote.stands_for != COSTS_CROWDED)
        return true;
    look_at_clock(process);
    look_at_marks(process);
    put_mark(process);
    process->quote = costs_ask(&process->costs, key_of(process), COSTS_GUESS_NS);
    if (process->quote.stands_for != COSTS_CROWDED)
        return true;
    if (!oldest_unfinished(process))
        abort();
    wait_for_ticket(process, oldest_unfinished(process));
    return false;
}

static bool pay(struct process *process)
{
    if (!world.vcore[process->tenant])
        return true;
    if (!process->pending) {
        if (!ask(process))
            return false;
        process->pending = true;
        if (governor_pay(&process->governor, process->quote.cost_ns))
            return true;
    }
    return pay_slowly(process);
}

static uint64_t launch(struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);
    unsigned stream = plan->streams ? (unsigned) (process->launches % plan->streams) : 0;
    bool sampled =
        process->pending && process->quote.stands_for && process->sample_count < WORLD_SAMPLES;
    struct sample *sample =
        &process->samples[(process->sample_first + process->sample_count) % WORLD_SAMPLES];
    uint64_t ticket;

    if (process->pending && !process->touched)
        process->begin = enqueue(process, stream, 0, 0);
    if (sampled)
        *sample = (struct sample) {.key = key_of(process),
                                   .quote = process->quote,
                                   .begin = enqueue(process, stream, 0, 0)};
    ticket = enqueue(process, stream, length_of(process), plan->units ? plan->units : WORLD_UNITS);
    if (sampled && process->quote.stands_for & COSTS_GUESSED)
        governor_unknown(&process->governor, 1);
    if (sampled) {
        sample->end = ticket = enqueue(process, stream, 0, 0);
        process->sample_count++;
    }
    if (process->pending)
        process->touched |= 1u << stream;
    process->pending = false;
    process->launches++;
    return ticket;
}

static void synchronize(struct process *process, uint64_t ticket)
{
    process->syncing = governor_paid(&process->governor) + 1;
    wait_for_ticket(process, ticket);
}

/* Between two bursts, or not begun, or over: when does it go on? 0: it runs. */
static uint64_t pause_until(const struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);
    uint64_t period = plan->on_ns + plan->off_ns;

    if (passed() < plan->start_ns)
        return WORLD_BOOT + plan->start_ns;
    if (plan->stop_ns && passed() >= plan->stop_ns)
        return NEVER - 1;
    if (plan->off_ns && passed() % period >= plan->on_ns)
        return WORLD_BOOT + (passed() / period + 1) * period;
    return 0;
}

static void run_process(struct process *process)
{
    const struct tenant_plan *plan = plan_of(process);
    uint64_t pause = pause_until(process);

    process->awaited = 0;
    if (plan->halt_ns && process->lane == world.processes[0].lane && passed() >= plan->halt_ns &&
        passed() < plan->go_on_ns) {
        process->wake_ns = WORLD_BOOT + plan->go_on_ns;
        return;
    }
    if (process->syncing) {
        uint64_t paid = process->syncing - 1;

        process->syncing = 0;
        look_at_clock(process);
        look_at_marks(process);
        if (world.vcore[process->tenant])
            governor_finish(&process->governor, paid, world.now);
        if (clock_hush(&process->clock, world.now))
            governor_empty(&process->governor, world.now);
    }
    if (pause) {
        uint64_t last = process->latest[0];

        process->wake_ns = pause;
        if (!is_done(process, last) && last)
            synchronize(process, last);
        return;
    }
    for (int i = 0; i < AT_ONCE; i++) {
        uint64_t ticket;

        if (!has_room(process)) {
            wait_for_ticket(process, world.lanes[process->lane].retired + 1);
            return;
        }
        if (!pay(process))
            return;
        ticket = launch(process);
        if (plan->synchronous) {
            synchronize(process, ticket);
            return;
        }
    }
    process->wake_ns = world.now + AT_ONCE * LAUNCH_NS;
}

/* ---- the arbiter */

static void see_processes(void)
{
    for (unsigned i = 0; i < world.process_count; i++) {
        struct process *process = &world.processes[i];

        if (!world.vcore[process->tenant]) /* as if it published what it has */
            process->work.begun = process->work.finished + (world.lanes[i].filled ? 5000 : 0);
        fluid_see(&world.fluid_lanes[i], process->work);
    }
    for (unsigned i = 0; i < world.tenant_count; i++) {
        world.fluid_tenants[i].bought_ns = world.compute[i].refilled_ns;
        world.fluid_tenants[i].quiet.wish_ns = world.compute[i].quiet_ns;
        world.fluid_tenants[i].quiet.wish_for_ns = world.compute[i].quiet_for;
        world.fluid_tenants[i].quiet.wish_slot = (uint32_t) world.compute[i].quiet_slot;
        if (world.vcore[i] && world.compute[i].budget_ns <= 0)
            fluid_wait(&world.fluid_tenants[i], world.now);
    }
}

static void lie(struct clock_file *page)
{
    for (int i = 0; i < 248; i++)
        page->samples[i] = (struct clock_sample) {0};
    page->newest = 1;
    page->samples[0] = (struct clock_sample) {.at_ns = 1, .share_ns = 1};
    page->samples[1] =
        (struct clock_sample) {.at_ns = world.now, .share_ns = 1 + (world.now - 1) / CLOCK_SHARERS};
    page->beat_ns = world.now;
    page->share_ns = page->samples[1].share_ns;
}

static void write_page(unsigned tenant, bool changed)
{
    struct clock_file *page = &world.pages[tenant];

    page_write(page, &world.fluid, &world.fluid_tenants[tenant]);
    if (world.scene->arbiter == ARBITER_LIES && changed)
        lie(page);
    if (world.scene->arbiter == ARBITER_LENDS && changed)
        page->lent = UINT32_MAX;
}

static void tick(void)
{
    struct fluid_tenant *tenants[WORLD_TENANTS];
    bool changed = passed() >= world.scene->arbiter_change_ns;

    world.tick_ns = world.now + (world.fluid.quiet.hush_ns ? QUIET_NS : TICK_NS) + late();
    for (unsigned i = 0; i < world.tenant_count; i++)
        tenants[i] = &world.fluid_tenants[i];
    if (world.scene->arbiter == ARBITER_FROZEN && changed)
        return;
    see_processes();
    fluid_tick(&world.fluid, tenants, world.tenant_count, world.now);
    for (unsigned i = 0; i < world.tenant_count; i++)
        write_page(i, changed);
}

/* ---- time */

static void advance_device(uint64_t now)
{
    while (!model_advance(&world.model, now))
        ;
}

/* Whoever waits for a ticket that is done wakes up, a little late. */
static void wake_waiters(void)
{
    for (unsigned i = 0; i < world.process_count; i++) {
        struct process *process = &world.processes[i];

        if (process->wake_ns == NEVER && is_done(process, process->awaited))
            process->wake_ns = world.device.now + late();
    }
}

static uint64_t next_wake(void)
{
    uint64_t next = world.tick_ns;

    for (unsigned i = 0; i < world.process_count; i++)
        if (world.processes[i].wake_ns < next)
            next = world.processes[i].wake_ns;
    return next;
}

static void step_to(uint64_t limit)
{
    for (;;) {
        uint64_t next;

        wake_waiters();
        next = next_wake();
        if (next > limit)
            next = limit;
        if (world.device.next_event >= next || world.device.now >= next) {
            advance_device(next);
            world.now = next;
            return;
        }
        advance_device(world.device.next_event);
    }
}

static void note_work(size_t step)
{
    for (unsigned i = 0; i < world.process_count; i++)
        world.work[world.processes[i].tenant][step] += world.lanes[i].busy_ns;
}

static void add_process(unsigned tenant, uint32_t slot)
{
    struct process *process = &world.processes[world.process_count];

    process->tenant = tenant;
    process->lane = world.process_count++;
    process->governor.shared = &world.compute[tenant];
    process->governor.work = &process->work;
    process->wake_ns = WORLD_BOOT + random_number() % WORLD_MS;
    process->slot = process->clock.slot = slot;
}

static void add_tenant(const struct tenant_plan *plan)
{
    struct fluid_tenant *fluid = &world.fluid_tenants[world.tenant_count];
    unsigned first = world.process_count;
    unsigned limit = plan->limit ? plan->limit : plan->vcore;

    for (unsigned i = 0; i < (plan->processes ? plan->processes : 1); i++)
        add_process(world.tenant_count, i);
    *fluid = (struct fluid_tenant) {.lanes = &world.fluid_lanes[first],
                                    .lane_count = world.process_count - first,
                                    .own = plan->vcore * CLOCK_WHOLE / 100,
                                    .limit = limit * CLOCK_WHOLE / 100};
    world.vcore[world.tenant_count] = plan->vcore;
    world.work[world.tenant_count] = calloc(world.steps + 2, sizeof(uint64_t));
    world.tenant_count++;
}

static void begin(const struct scene *scene)
{
    for (unsigned i = 0; i < WORLD_TENANTS; i++)
        free(world.work[i]);
    memset(&world, 0, sizeof(world));
    world.scene = scene;
    world.random = scene->seed;
    world.now = world.tick_ns = WORLD_BOOT;
    world.model = (struct model) {.device = &world.device, .find_lane = find_lane};
    world.device.now = WORLD_BOOT;
    world.device.units = WORLD_UNITS;
    world.device.next_event = MODEL_NEVER;
    world.steps = scene->duration_ns / WORLD_STEP;
    fluid_start(&world.fluid, WORLD_BOOT - 1);
    for (unsigned i = 0; i < WORLD_TENANTS; i++)
        world.pages[i].header =
            (struct region_header) {CLOCK_MAGIC, REGION_LAYOUT, sizeof(world.pages[i]), {0}};
    for (unsigned i = 0; i < WORLD_TENANTS && scene->tenants[i].length_ns; i++)
        add_tenant(&scene->tenants[i]);
}

void world_run(const struct scene *scene)
{
    uint64_t script_ns = WORLD_BOOT;
    size_t step = 0;

    begin(scene);
    while (step <= world.steps) {
        uint64_t limit = WORLD_BOOT + step * WORLD_STEP;

        if (scene->script && script_ns < limit)
            limit = script_ns;
        step_to(limit);
        if (scene->script && world.now >= script_ns) {
            scene->script(passed());
            script_ns += WORLD_MS;
        }
        if (world.now >= world.tick_ns)
            tick();
        for (unsigned i = 0; i < world.process_count; i++)
            if (world.processes[i].wake_ns <= world.now)
                run_process(&world.processes[i]);
        advance_device(world.now);
        if (world.now == WORLD_BOOT + step * WORLD_STEP)
            note_work(step++);
    }
}

void world_set(unsigned tenant, unsigned vcore)
{
    world.vcore[tenant] = vcore;
    world.fluid_tenants[tenant].own = vcore * CLOCK_WHOLE / 100;
}

uint64_t world_work(unsigned tenant, uint64_t from_ns, uint64_t until_ns)
{
    return world.work[tenant][until_ns / WORLD_STEP] - world.work[tenant][from_ns / WORLD_STEP];
}
