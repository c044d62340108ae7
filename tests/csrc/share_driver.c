/* SPDX-License-Identifier: Apache-2.0 */
/* share_driver.c -- the driver of a scene: tickets, and when they were done. */
#include "share_parts.h"

#include <stdlib.h>

bool driver_is_done(const struct process *process, uint64_t ticket)
{
    return !ticket || model_is_done(&world.lanes[process->lane], ticket);
}

void driver_retire(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];
    uint64_t ticket = lane->retired;

    while (ticket < lane->enqueued && model_is_done(lane, ticket + 1)) {
        ticket++;
        process->done_ns[ticket % MODEL_RING] = lane->ring[ticket % MODEL_RING].finished;
    }
    model_retire(&world.model, process->lane, ticket);
}

uint64_t driver_enqueue(struct process *process, unsigned stream, uint64_t length, unsigned units)
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

bool driver_has_room(struct process *process)
{
    struct model_lane *lane = &world.lanes[process->lane];

    driver_retire(process);
    return lane->enqueued - lane->retired + ROOM < MODEL_RING;
}

uint64_t driver_done_at(const struct process *process, uint64_t ticket)
{
    return process->done_ns[ticket % MODEL_RING];
}
