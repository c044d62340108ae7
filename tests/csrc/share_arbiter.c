/* SPDX-License-Identifier: Apache-2.0 */
/* share_arbiter.c -- the arbiter of a scene, which may lie, freeze or be away. */
#include "share_parts.h"

#include "arbiter/page.h"

#define TICK_NS  (5 * WORLD_MS)
#define QUIET_NS WORLD_MS

/* Something writes the words of a process that launches nothing: as if a second of work were always
 * in flight, and as much were done as time goes by. */
static void publish_lies(struct usage_work *work)
{
    work->begun = (uint32_t) ((world_passed() + WORLD_S) / WORK_UNIT_NS);
    work->finished = (uint32_t) (world_passed() / WORK_UNIT_NS);
}

static void see_processes(void)
{
    for (unsigned i = 0; i < world.process_count; i++) {
        struct process *process = &world.processes[i];

        if (!world.vcore[process->tenant]) /* as if it published what it has */
            process->work.begun = process->work.finished + (world.lanes[i].filled ? 5000 : 0);
        if (process_plan(process)->lies)
            publish_lies(&process->work);
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

void arbiter_tick(void)
{
    struct fluid_tenant *tenants[WORLD_TENANTS];
    bool changed = world_passed() >= world.scene->arbiter_change_ns;

    world.tick_ns =
        world.now + (world.fluid.quiet.lively_ns > world.now ? QUIET_NS : TICK_NS) + world_late();
    for (unsigned i = 0; i < world.tenant_count; i++)
        tenants[i] = &world.fluid_tenants[i];
    if (world.scene->arbiter == ARBITER_FROZEN && changed)
        return;
    see_processes();
    fluid_tick(&world.fluid, tenants, world.tenant_count, world.now);
    for (unsigned i = 0; i < world.tenant_count; i++)
        write_page(i, changed);
}
