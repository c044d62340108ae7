/* SPDX-License-Identifier: Apache-2.0 */
/* share_program.c -- the programs of a scene: what they launch, and when. */
#include "share_parts.h"

#define LAUNCH_NS (2 * WORLD_US) /* of the program's own time */

enum { AT_ONCE = 4 };

static uint64_t length_of(const struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);

    if (plan->other_ns && process->launches % 2)
        return plan->other_ns;
    return plan->later_ns && world_passed() >= plan->change_ns ? plan->later_ns : plan->length_ns;
}

static uint64_t key_of(const struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);

    if (plan->fresh)
        return costs_key(0x100000 + process->launches, 0);
    return costs_key(0x1000, plan->other_ns ? process->launches % 2 : 0);
}

static uint64_t launch(struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);
    unsigned stream = plan->streams ? (unsigned) (process->launches % plan->streams) : 0;
    bool sampled =
        process->pending && process->quote.stands_for && process->sample_count < WORLD_SAMPLES;
    struct sample *sample =
        &process->samples[(process->sample_first + process->sample_count) % WORLD_SAMPLES];
    uint64_t ticket;

    if (process->pending && !process->touched) {
        process->begin = driver_enqueue(process, stream, 0, 0);
        process->begin_ns = world.now;
    }
    if (sampled)
        *sample = (struct sample) {.key = key_of(process),
                                   .quote = process->quote,
                                   .set_ns = world.now,
                                   .begin = driver_enqueue(process, stream, 0, 0)};
    ticket = driver_enqueue(process, stream, length_of(process),
                            plan->units ? plan->units : WORLD_UNITS);
    if (sampled && process->quote.stands_for & COSTS_GUESSED)
        governor_unknown(&process->governor, 1);
    if (sampled) {
        sample->end = ticket = driver_enqueue(process, stream, 0, 0);
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
    process_wait_for(process, ticket);
}

/* Between two bursts, or not begun, or over: when does it go on? 0: it runs. */
static uint64_t pause_until(const struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);
    uint64_t period = plan->on_ns + plan->off_ns;

    if (plan->lies)
        return NEVER - 1;
    if (world_passed() < plan->start_ns)
        return WORLD_BOOT + plan->start_ns;
    if (plan->stop_ns && world_passed() >= plan->stop_ns)
        return NEVER - 1;
    if (plan->off_ns && world_passed() % period >= plan->on_ns)
        return WORLD_BOOT + (world_passed() / period + 1) * period;
    return 0;
}

void program_run(struct process *process)
{
    const struct tenant_plan *plan = process_plan(process);
    uint64_t pause = pause_until(process);

    process->awaited = 0;
    if (plan->halt_ns && process->lane == world.processes[0].lane &&
        world_passed() >= plan->halt_ns && world_passed() < plan->go_on_ns) {
        process->wake_ns = WORLD_BOOT + plan->go_on_ns;
        return;
    }
    if (process->syncing) {
        uint64_t paid = process->syncing - 1;

        process->syncing = 0;
        shim_look_at_clock(process);
        shim_look_at_marks(process);
        if (world.vcore[process->tenant])
            governor_finish(&process->governor, paid, world.now);
        if (clock_hush(&process->clock, world.now))
            governor_empty(&process->governor, world.now);
    }
    if (pause) {
        uint64_t last = process->latest[0];

        process->wake_ns = pause;
        if (!driver_is_done(process, last) && last)
            synchronize(process, last);
        return;
    }
    for (int i = 0; i < AT_ONCE; i++) {
        uint64_t ticket;

        if (!driver_has_room(process)) {
            process_wait_for(process, driver_oldest(process));
            return;
        }
        if (!shim_pay(process, key_of(process)))
            return;
        ticket = launch(process);
        if (plan->synchronous) {
            synchronize(process, ticket);
            return;
        }
    }
    process->wake_ns = world.now + AT_ONCE * LAUNCH_NS;
}
