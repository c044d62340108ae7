/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c -- this process's work on each device: hands it to the model, does to bytes what is due.
 *
 * For each ticket that the model may still know there is a place in a ring here, with the effect.
 * local_look() brings the device's time up to now and does the effects of what is finished, in the
 * order of the tickets; work never depends on a later ticket, so that order is right for every
 * stream.
 */
#include "queue.h"

#include <stdlib.h>

#include "clock.h"
#include "queueparts.h"

#define SPIN_NS      60000   /* timers are late by about as much */
#define GATE_POLL_NS 100000  /* how often a closed gate is tried */
#define NEIGHBOUR_NS 5000000 /* a neighbour that dies frees its turns */
#define ALONE_NS     100000000

static struct local_device locals[CONFIG_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void initialise(void)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    for (uint32_t device = 0; device < CONFIG_DEVICES; device++) {
        pthread_mutex_init(&locals[device].lock, NULL);
        pthread_cond_init(&locals[device].gate_added, &attributes);
    }
    pthread_condattr_destroy(&attributes);
}

struct local_device *local_of(uint32_t device)
{
    pthread_once(&once, initialise);
    return &locals[device];
}

uint32_t local_number(const struct local_device *local)
{
    return (uint32_t) (local - locals);
}

bool queue_is_immediate(uint32_t device)
{
    return process.machine->config.free_mode &&
           atomic_load_explicit(&locals[device].enqueued, memory_order_relaxed) ==
               atomic_load_explicit(&locals[device].retired, memory_order_relaxed);
}

uint8_t queue_take(uint32_t device, bool ordered)
{
    struct local_device *local = local_of(device);
    unsigned int best = ordered ? 1 : MODEL_FIRST_UNORDERED;
    unsigned int end = ordered ? MODEL_FIRST_UNORDERED : MODEL_QUEUES;

    pthread_mutex_lock(&local->lock);
    for (unsigned int queue = best; queue < end; queue++)
        if (local->users[queue] < local->users[best])
            best = queue;
    local->users[best]++;
    pthread_mutex_unlock(&local->lock);
    return (uint8_t) best;
}

void queue_give(uint32_t device, uint8_t queue)
{
    struct local_device *local = local_of(device);

    pthread_mutex_lock(&local->lock);
    if (queue)
        local->users[queue]--;
    pthread_mutex_unlock(&local->lock);
}

static void apply(struct effect *effect)
{
    if (effect->apply)
        effect->apply(effect);
    free(effect->memory);
    effect->memory = NULL;
}

static bool is_past(const struct local_device *local, uint64_t ticket)
{
    return ticket <= local->retired || local_place(local, ticket)->is_applied;
}

/* True if a stream stands at its gate: what comes next is then not for the model to say. */
static bool note_states(struct local_device *local, struct model_lane *lane)
{
    bool at_gate = false;

    for (uint64_t t = local->retired + 1; t <= local->enqueued; t++) {
        const struct model_work *work = &lane->ring[t % MODEL_RING];
        struct place *place = local_place(local, t);

        place->is_at_gate = work->state == WORK_AT_GATE;
        at_gate |= place->is_at_gate;
        if (!place->is_done && work->state == WORK_DONE) {
            place->is_done = true;
            place->effect.finished = work->finished;
        }
    }
    return at_gate;
}

static void apply_effects(struct local_device *local)
{
    for (uint64_t t = local->retired + 1; t <= local->enqueued; t++) {
        struct place *place = local_place(local, t);
        if (!place->is_done || place->is_applied)
            continue;
        apply(&place->effect);
        place->is_applied = true;
    }
    while (local->retired < local->enqueued && local_place(local, local->retired + 1)->is_applied)
        local->retired++;
}

uint64_t local_look(struct local_device *local, uint64_t ticket)
{
    uint32_t device = local_number(local);
    struct model model = machine_model(process.machine, device);
    struct model_lane *lane = model.find_lane(model.context, process.slot);
    uint64_t longest = ALONE_NS;
    uint64_t when;
    bool at_gate;

    if (local->enqueued == local->retired)
        return 0;
    machine_advance_device(process.machine, device);
    model_retire(&model, process.slot, local->retired);
    at_gate = note_states(local, lane);
    when = model_earliest(&model, process.slot, ticket);
    if (at_gate)
        longest = GATE_POLL_NS;
    else if (model_active(model.device) > 1)
        longest = NEIGHBOUR_NS;
    if (when > model.device->now + longest || when == model.device->now)
        when = model.device->now + longest;
    machine_unlock_device(process.machine, device);
    apply_effects(local);
    return when;
}

static void pause_until(uint64_t when)
{
    uint64_t now = clock_now();

    if (when > now + 2 * SPIN_NS)
        clock_sleep_until(when - SPIN_NS);
    while (clock_now() < when)
        continue;
}

/* Under local->lock, which others may take meanwhile. */
static void wait_for(struct local_device *local, uint64_t ticket)
{
    while (!is_past(local, ticket)) {
        uint64_t when = local_look(local, ticket);

        if (is_past(local, ticket))
            return;
        pthread_mutex_unlock(&local->lock);
        pause_until(when);
        machine_reap(process.machine, false);
        pthread_mutex_lock(&local->lock);
    }
}

CUresult local_make_room(struct local_device *local)
{
    if (!local->ring) {
        local->ring = calloc(MODEL_RING, sizeof(*local->ring));
        if (!local->ring)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    while (local->enqueued - local->retired >= MODEL_RING)
        wait_for(local, local->retired + 1);
    return CUDA_SUCCESS;
}

uint64_t local_enqueue(struct local_device *local, struct stream *stream,
                       const struct work_order *order)
{
    struct model model = machine_model(process.machine, stream->device);
    struct model_work work = {
        .submitted = clock_now(),
        .remaining = process.machine->config.free_mode ? 0 : order->ns,
        .after = order->after,
        .units = order->units,
        .engine = (uint8_t) order->engine,
        .queue = stream->queue,
    };
    uint64_t ticket;
    struct place *place;

    machine_lock_device(process.machine, stream->device);
    model_retire(&model, process.slot, local->retired);
    ticket = model_enqueue(&model, process.slot, &work);
    machine_unlock_device(process.machine, stream->device);
    place = local_place(local, ticket);
    *place = (struct place) {.effect = order->effect, .queue = stream->queue};
    local->enqueued = ticket;
    stream->last = ticket;
    return ticket;
}

CUresult stream_submit(struct stream *stream, const struct work_order *order, struct moment *moment)
{
    struct local_device *local = local_of(stream->device);
    uint64_t ticket = 0;
    CUresult result = CUDA_SUCCESS;

    if (!queue_is_immediate(stream->device)) {
        pthread_mutex_lock(&local->lock);
        if (process.machine->config.free_mode)
            local_look(local, local->enqueued);
        if (!queue_is_immediate(stream->device)) {
            result = local_make_room(local);
            if (result == CUDA_SUCCESS)
                ticket = local_enqueue(local, stream, order);
        }
        pthread_mutex_unlock(&local->lock);
    }
    if (result == CUDA_SUCCESS && !ticket) {
        struct effect effect = order->effect;
        effect.finished = order->engine == ENGINE_NONE ? clock_now() : 0;
        apply(&effect);
    }
    if (moment)
        *moment = (struct moment) {stream->device, ticket};
    return result;
}

bool moment_is_past(const struct moment *moment)
{
    struct local_device *local = local_of(moment->device);
    bool past;

    if (moment->ticket <= local->retired)
        return true;
    pthread_mutex_lock(&local->lock);
    if (!is_past(local, moment->ticket))
        local_look(local, moment->ticket);
    past = is_past(local, moment->ticket);
    pthread_mutex_unlock(&local->lock);
    return past;
}

CUresult moment_wait(const struct moment *moment)
{
    struct local_device *local = local_of(moment->device);

    if (moment->ticket <= local->retired)
        return CUDA_SUCCESS;
    if (gate_keeper_asks())
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&local->lock);
    wait_for(local, moment->ticket);
    pthread_mutex_unlock(&local->lock);
    return CUDA_SUCCESS;
}

void queue_drain(uint32_t device)
{
    struct local_device *local = local_of(device);

    if (local->enqueued == local->retired || gate_keeper_asks())
        return;
    pthread_mutex_lock(&local->lock);
    for (uint64_t last = local->enqueued; local->retired < last;)
        wait_for(local, local->retired + 1);
    pthread_mutex_unlock(&local->lock);
}

bool queue_is_ordered_work_done(uint32_t device)
{
    struct local_device *local = local_of(device);
    bool done = true;

    if (local->enqueued == local->retired)
        return true;
    pthread_mutex_lock(&local->lock);
    local_look(local, local->enqueued);
    for (uint64_t t = local->retired + 1; t <= local->enqueued; t++)
        done &= local_place(local, t)->is_applied ||
                local_place(local, t)->queue >= MODEL_FIRST_UNORDERED;
    pthread_mutex_unlock(&local->lock);
    return done;
}
