/* SPDX-License-Identifier: Apache-2.0 */
/* share_world.c -- runs scenes in virtual time; see share_world.h. */
#include "share_parts.h"

#include <stdlib.h>
#include <string.h>

struct world world;

static struct model_lane *find_lane(void *context, uint32_t lane)
{
    (void) context;
    return &world.lanes[lane];
}

uint64_t world_passed(void)
{
    return world.now - WORLD_BOOT;
}

uint32_t world_random(void)
{
    world.random = world.random * 1664525u + 1013904223u;
    return world.random >> 8;
}

uint64_t world_late(void)
{
    return world.scene->late_ns ? world_random() % world.scene->late_ns : 0;
}

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

        if (process->wake_ns == NEVER && driver_is_done(process, process->awaited))
            process->wake_ns = world.device.now + world_late();
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
    process->wake_ns = WORLD_BOOT + world_random() % WORLD_MS;
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
    world.model = (struct model) {
        .device = &world.device, .find_lane = find_lane, .law = {.slice_ns = WORLD_SLICE}};
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
            scene->script(world_passed());
            script_ns += WORLD_MS;
        }
        if (world.now >= world.tick_ns)
            arbiter_tick();
        for (unsigned i = 0; i < world.process_count; i++)
            if (world.processes[i].wake_ns <= world.now)
                program_run(&world.processes[i]);
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
