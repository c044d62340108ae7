/* SPDX-License-Identifier: Apache-2.0 */
/* share_shim.c -- the shim of a scene: marks and measurements, and what a launch pays. */
#include "share_parts.h"

#include <stdlib.h>
#include <string.h>

#define SLEEP_NS (50 * WORLD_MS)
#define LOOK_NS  (2 * WORLD_MS) /* between two looks at the clock */
#define SOON_NS  (WORLD_MS / 2) /* in quiet moments */

#define WISH_NS       (200 * WORLD_MS)
#define WISH_AFTER_NS (3 * WORLD_MS / 2)

static uint32_t rate_between(struct process *process, uint64_t begin, uint64_t end)
{
    return clock_rate(&process->clock, begin, end, world.now);
}

void shim_look_at_clock(struct process *process)
{
    bool soon = process->governor.wishes || clock_hush(&process->clock, world.now);

    if (world.now - process->looked_ns < (soon ? SOON_NS : LOOK_NS) ||
        world.scene->arbiter == ARBITER_ABSENT)
        return;
    process->looked_ns = world.now;
    clock_judge(&process->clock, &world.pages[process->tenant], world.now);
}

/* As the shim does: what the clock says of later is foreseen only. */
static bool awaits_clock(const struct process *process, const struct sample *sample)
{
    uint64_t end = driver_done_at(process, sample->end);

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
        struct costs_known before, known;
        struct costs_sample measured;
        uint64_t begin, end;
        int64_t missing;

        if (sample->end > process->retired_ticket || awaits_clock(process, sample))
            break;
        begin = driver_done_at(process, sample->begin);
        end = driver_done_at(process, sample->end);
        measured =
            (struct costs_sample) {.paid_ns = sample->quote.cost_ns,
                                   .stands_for = sample->quote.stands_for,
                                   .elapsed_ns = (int64_t) (end - begin),
                                   .queued_ns = (int64_t) (process->last_sample_ns - begin),
                                   .rate = rate_between(process, begin, end),
                                   .sharers = clock_sharers(&process->clock),
                                   .alone = clock_alone(&process->clock, begin, end, world.now),
                                   .crowded = process->governor.several};
        if (measured.sharers > 1)
            governor_worked(&process->governor, sample->set_ns, end);
        if (process->last_sample_ns < end)
            process->last_sample_ns = end;
        before = costs_know(&process->costs, sample->key);
        missing = costs_learn(&process->costs, sample->key, &measured);
        if (sample->set_ns > process->governor.settled_ns)
            governor_correct(&process->governor, missing, sample->set_ns);
        known = costs_know(&process->costs, sample->key);
        if (costs_know_better(&before, &known)) {
            governor_overlap_anew(&process->governor);
            governor_forgive(&process->governor, costs_settle(&process->costs, sample->key));
        }
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
        if (mark->ends[s] > process->retired_ticket)
            return false;
    return true;
}

static void account(struct process *process, const struct mark *mark, uint64_t end)
{
    uint64_t before = process->last_end_ns;
    struct governor_period period = {.paid_ns = mark->paid - mark->begun,
                                     .from_ns = before,
                                     .given_ns = mark->given_ns,
                                     .end_ns = end,
                                     .several = process_plan(process)->streams > 1};
    uint64_t begin = driver_done_at(process, mark->begin);

    if (mark->given_ns > before) {
        period.from_ns = begin > before ? begin : before;
        period.giving_ns = mark->given_ns - mark->begin_ns;
    }
    begin = period.from_ns;
    period.rate = rate_between(process, begin, end);
    period.alone = clock_alone(&process->clock, begin, end, world.now);
    period.beside = clock_sharers(&process->clock) > 1;
    process->governor.several = (uint32_t) period.several;
    if (governor_period(&process->governor, &period))
        costs_distrust(&process->costs);
    if (governor_wants_quiet(&process->governor) && clock_sharers(&process->clock) > 1)
        governor_wish(&process->governor, world.now + WISH_NS, 10 * WORLD_MS, process->slot);
}

static void note_overdue(struct process *process)
{
    const struct mark *mark = &process->marks[process->mark_first % MARKS];
    uint64_t begin = mark->given_ns > process->last_end_ns ? mark->given_ns : process->last_end_ns;

    if (!process->mark_count || process->governor.several)
        governor_overdue(&process->governor, 0, 0);
    else if (world.now > begin && clock_alone(&process->clock, begin, world.now, world.now))
        governor_overdue(&process->governor, (int64_t) (mark->paid - mark->begun),
                         (int64_t) (world.now - begin));
}

static void finish_mark(struct process *process, const struct mark *mark)
{
    uint64_t end = 0;

    for (unsigned s = 0; s < WORLD_STREAMS; s++)
        if (mark->ends[s] && driver_done_at(process, mark->ends[s]) > end)
            end = driver_done_at(process, mark->ends[s]);
    governor_finish(&process->governor, mark->paid, world.now);
    account(process, mark, end);
    if (process->last_end_ns < end)
        process->last_end_ns = end;
}

bool shim_look_at_marks(struct process *process)
{
    bool any;

    driver_retire(process);
    any = finish_samples(process);
    while (process->mark_count) {
        struct mark *mark = &process->marks[process->mark_first % MARKS];

        if (!mark_is_done(process, mark))
            break;
        finish_mark(process, mark);
        governor_overdue(&process->governor, 0, 0);
        process->mark_first++;
        process->mark_count--;
        any = true;
    }
    note_overdue(process);
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
    mark->begin = process->begin;
    mark->begin_ns = process->begin_ns;
    for (unsigned s = 0; s < WORLD_STREAMS; s++)
        if (process->touched & 1u << s)
            mark->ends[s] = driver_enqueue(process, s, 0, 0);
    process->last_paid = mark->paid;
    process->touched = 0;
    process->mark_count++;
}

static struct governor_share share_of(const struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);
    struct governor_share share = {.own = world.vcore[process->tenant] * CLOCK_WHOLE / 100};

    share.limit = plan->limit ? plan->limit * CLOCK_WHOLE / 100 : share.own;
    share.lent = plan->limit ? clock_lent(&process->clock, world.now) : 0;
    share.quiet = (uint32_t) clock_is_quiet(&process->clock, world.now);
    share.hush_ns = clock_hush(&process->clock, world.now);
    return share;
}

/* Tickets are looked at in their order, so one that is done may still wait for one before it. */
static uint64_t oldest_unfinished(const struct process *process)
{
    return process->mark_count ? driver_oldest(process) : 0;
}

/* True when the launch is paid; else the process waits. */
static bool pay_slowly(struct process *process)
{
    struct governor_share share;
    uint64_t until;
    bool full = false;

    shim_look_at_clock(process);
    shim_look_at_marks(process);
    put_mark(process);
    share = share_of(process);
    if (process->governor.settled_ns != process->settled_ns)
        costs_stand_alone(&process->quote);
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
        process_wait_for(process, oldest_unfinished(process));
        return false;
    }
    if (full)
        abort();
    governor_waits(&process->governor);
    if (until > world.now + SLEEP_NS)
        until = world.now + SLEEP_NS;
    process->wake_ns = until + world_late();
    return false;
}

static bool ask(struct process *process, uint64_t key)
{
    process->quote = costs_ask(&process->costs, key, COSTS_GUESS_NS);
    if (process->quote.stands_for != COSTS_CROWDED)
        return true;
    shim_look_at_clock(process);
    shim_look_at_marks(process);
    put_mark(process);
    process->quote = costs_ask(&process->costs, key, COSTS_GUESS_NS);
    if (process->quote.stands_for != COSTS_CROWDED)
        return true;
    if (!oldest_unfinished(process))
        abort();
    process_wait_for(process, oldest_unfinished(process));
    return false;
}

bool shim_pay(struct process *process, uint64_t key)
{
    if (!world.vcore[process->tenant])
        return true;
    if (!process->pending) {
        if (!ask(process, key))
            return false;
        process->pending = true;
        process->settled_ns = process->governor.settled_ns;
        if (governor_pay(&process->governor, process->quote.cost_ns))
            return true;
    }
    return pay_slowly(process);
}
