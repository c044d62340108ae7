/* SPDX-License-Identifier: Apache-2.0 */
/* share_driver.c -- the driver of a scene: tickets, and when they were done. */
#include "share_parts.h"

#include <stdlib.h>

bool driver_is_done(const struct process *process, uint64_t ticket)
{
    return !ticket || model_is_done(&world.lanes[process->lane], ticket);
}

/* Places are used in turn. */
static uint64_t ticket_of(uint64_t count)
{
    return count * MODEL_PLACES + count % DRIVER_RING;
}

uint64_t driver_oldest(const struct process *process)
{
    return ticket_of(process->retired + 1);
}

void driver_retire(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];

    while (process->retired < lane->enqueued && model_is_done(lane, driver_oldest(process))) {
        process->retired_ticket = ticket_of(++process->retired);
        process->done_ns[process->retired % DRIVER_RING] =
            model_work_of(lane, process->retired_ticket)->finished;
    }
}

uint64_t driver_enqueue(struct process *process, unsigned stream, uint64_t length, unsigned units)
{
    struct model_work work = {.submitted = world.now,
                              .remaining = length,
                              .units = units,
                              .engine = length ? ENGINE_SM : ENGINE_NONE,
                              .queue = (uint8_t) (1 + stream)};
    uint64_t count = world.lanes[process->lane].enqueued + 1;
    uint64_t ticket;

    if (count - process->retired > DRIVER_RING)
        abort();
    ticket = model_enqueue(&world.model, process->lane, count % DRIVER_RING, &work);
    process->latest[stream] = ticket;
    return ticket;
}

bool driver_has_room(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];

    driver_retire(process);
    return lane->enqueued - process->retired + ROOM < DRIVER_RING;
}

uint64_t driver_done_at(const struct process *process, uint64_t ticket)
{
    return process->done_ns[ticket % DRIVER_RING];
}
