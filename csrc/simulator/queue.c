/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c -- this process's work on each device: submits it to the model and applies its effects.
 *
 * For each place of the model's lane there is one here, with the effect of the work that has it.
 * queue_local_advance() advances the device's time to now and applies the effects of finished work,
 * in the order of the tickets; work never depends on a later ticket, so that order is right for
 * every stream.
 */
#include "queue.h"

#include <stdlib.h>

#include "clock.h"
#include "queue_parts.h"

#define SPIN_NS      60000   /* timers are late by about as much */
#define GATE_POLL_NS 100000  /* period at which a closed gate is polled */
#define NEIGHBOUR_NS 5000000 /* the death of another lane's process frees its turns */
#define ALONE_NS     100000000

enum { PAGE_OF_PLACES = 1024 }; /* places whose memory is allocated at once */

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

struct local_device *queue_local(uint32_t device)
{
    pthread_once(&once, initialise);
    return &locals[device];
}

uint32_t queue_local_number(const struct local_device *local)
{
    return (uint32_t) (local - locals);
}

bool queue_is_immediate(uint32_t device)
{
    return process.machine->config.free_mode &&
           !atomic_load_explicit(&locals[device].outstanding, memory_order_relaxed);
}

uint8_t queue_take(uint32_t device, bool ordered)
{
    struct local_device *local = queue_local(device);
    unsigned int best = ordered ? 1 : MODEL_FIRST_UNORDERED;
    unsigned int end = ordered ? MODEL_FIRST_UNORDERED : MODEL_QUEUES;

    pthread_mutex_lock(&local->lock);
    for (unsigned int queue = best; queue < end; queue++)
        if (local->queues[queue].users < local->queues[best].users)
            best = queue;
    local->queues[best].users++;
    pthread_mutex_unlock(&local->lock);
    return (uint8_t) best;
}

void queue_give(uint32_t device, uint8_t queue)
{
    struct local_device *local = queue_local(device);

    pthread_mutex_lock(&local->lock);
    if (queue)
        local->queues[queue].users--;
    pthread_mutex_unlock(&local->lock);
}

static void apply(struct effect *effect)
{
    if (effect->apply)
        effect->apply(effect);
    free(effect->memory);
    effect->memory = NULL;
}

/* Without local->lock it may be late, never early: the effect is done before. */
static bool is_past(const struct local_device *local, uint64_t ticket)
{
    return !ticket || !local->places ||
           atomic_load_explicit(&queue_local_place(local, ticket)->ticket, memory_order_acquire) !=
               ticket;
}

/* True if a stream is at its gate: the model cannot predict when it goes on. */
static bool note_gates(struct local_device *local, struct model_lane *lane)
{
    bool at_gate = false;

    for (const struct gate *gate = local->gates; gate; gate = gate->next) {
        struct place *place = queue_local_place(local, gate->ticket);

        place->is_at_gate = model_work_of(lane, gate->ticket)->state == WORK_AT_GATE;
        at_gate |= place->is_at_gate;
    }
    return at_gate;
}

/* Collect the tickets of finished work in local->due, unordered; returns how many. */
static size_t take_done(struct local_device *local, struct model_lane *lane)
{
    size_t count = 0;
    uint32_t place;

    while (model_take_done(lane, &place)) {
        local->places[place].effect.begun = lane->places[place].begun;
        local->places[place].effect.finished = lane->places[place].finished;
        local->due[count++] = lane->places[place].ticket;
    }
    return count;
}

static int compare_tickets(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *) one;
    uint64_t b = *(const uint64_t *) other;

    return (a > b) - (a < b);
}

static void apply_effects(struct local_device *local, size_t count)
{
    if (count > 1)
        qsort(local->due, count, sizeof(*local->due), compare_tickets);
    for (size_t i = 0; i < count; i++) {
        uint64_t ticket = local->due[i];
        struct place *place = queue_local_place(local, ticket);
        struct local_queue *queue = &local->queues[place->queue];

        apply(&place->effect);
        queue->first = place->next; /* a queue is in order */
        queue->count--;
        local->unused[local->unused_count++] = (uint32_t) (ticket % MODEL_PLACES);
        atomic_store_explicit(&place->ticket, 0, memory_order_release);
        atomic_fetch_sub(&local->outstanding, 1);
    }
}

uint64_t queue_local_advance(struct local_device *local, uint64_t ticket)
{
    uint32_t device = queue_local_number(local);
    struct model model = machine_model(process.machine, device);
    struct model_lane *lane = model.find_lane(model.context, process.slot);
    uint64_t longest = ALONE_NS;
    uint64_t when = 0;
    bool at_gate;
    size_t done;

    if (!local->outstanding)
        return 0;
    machine_advance_device(process.machine, device);
    at_gate = note_gates(local, lane);
    done = take_done(local, lane);
    if (!is_past(local, ticket))
        when = model_earliest(&model, process.slot, ticket);
    if (at_gate)
        longest = GATE_POLL_NS;
    else if (model_active(model.device) > 1)
        longest = NEIGHBOUR_NS;
    if (when > model.device->now + longest || when <= model.device->now)
        when = model.device->now + longest;
    machine_unlock_device(process.machine, device);
    apply_effects(local, done);
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

/* Under local->lock, which is released meanwhile. */
static void advance_later(struct local_device *local, uint64_t when)
{
    pthread_mutex_unlock(&local->lock);
    pause_until(when);
    machine_reap(process.machine, false);
    pthread_mutex_lock(&local->lock);
}

/* Under local->lock, which is released meanwhile. */
static void wait_for(struct local_device *local, uint64_t ticket)
{
    while (!is_past(local, ticket)) {
        uint64_t when = queue_local_advance(local, ticket);

        if (is_past(local, ticket))
            return;
        advance_later(local, when);
    }
}

static CUresult make_places(struct local_device *local)
{
    local->places = calloc(MODEL_PLACES, sizeof(*local->places));
    local->unused = calloc(MODEL_PLACES, sizeof(*local->unused));
    local->due = calloc(MODEL_PLACES, sizeof(*local->due));
    if (local->places && local->unused && local->due)
        return CUDA_SUCCESS;
    free(local->places);
    free(local->unused);
    free(local->due);
    local->places = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Allocate the memory of places that were never used. */
static CUresult know_more_places(struct local_device *local)
{
    if (!machine_make_places(process.machine, queue_local_number(local), process.slot, local->known,
                             PAGE_OF_PLACES))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = PAGE_OF_PLACES; i > 0; i--)
        local->unused[local->unused_count++] = local->known + i - 1;
    local->known += PAGE_OF_PLACES;
    return CUDA_SUCCESS;
}

static bool is_full(const struct local_device *local, const struct local_queue *queue)
{
    return queue->count >= process.machine->config.law.queue_depth ||
           (!local->unused_count && local->known == MODEL_PLACES);
}

CUresult queue_local_make_room(struct local_device *local, const struct stream *stream)
{
    const struct local_queue *queue = &local->queues[stream->queue];
    CUresult result = local->places ? CUDA_SUCCESS : make_places(local);

    if (result != CUDA_SUCCESS)
        return result;
    while (is_full(local, queue)) {
        uint64_t when = queue_local_advance(local, queue->first);

        if (is_full(local, queue))
            advance_later(local, when);
    }
    return local->unused_count ? CUDA_SUCCESS : know_more_places(local);
}

uint64_t queue_local_enqueue(struct local_device *local, struct stream *stream,
                             const struct work_order *order)
{
    struct model model = machine_model(process.machine, stream->device);
    struct local_queue *queue = &local->queues[stream->queue];
    uint32_t number = local->unused[--local->unused_count];
    struct place *place = &local->places[number];
    struct model_work work = {
        .submitted = clock_now(),
        .remaining = process.machine->config.free_mode ? 0 : order->ns,
        .after = order->after,
        .units = order->units,
        .engine = (uint8_t) order->engine,
        .queue = stream->queue,
        .priority = (uint8_t) -stream->priority,
    };
    uint64_t ticket;

    machine_lock_device(process.machine, stream->device);
    ticket = model_enqueue(&model, process.slot, number, &work);
    machine_unlock_device(process.machine, stream->device);
    place->next = 0;
    place->effect = order->effect;
    place->queue = stream->queue;
    place->is_at_gate = false;
    atomic_store_explicit(&place->ticket, ticket, memory_order_release);
    if (queue->count++)
        queue_local_place(local, queue->last)->next = ticket;
    else
        queue->first = ticket;
    queue->last = ticket;
    atomic_fetch_add(&local->outstanding, 1);
    stream->last = ticket;
    return ticket;
}

CUresult queue_submit(struct stream *stream, const struct work_order *order, struct moment *moment)
{
    struct local_device *local = queue_local(stream->device);
    uint64_t ticket = 0;
    CUresult result = CUDA_SUCCESS;

    if (!queue_is_immediate(stream->device)) {
        pthread_mutex_lock(&local->lock);
        if (process.machine->config.free_mode)
            queue_local_advance(local, 0);
        if (!queue_is_immediate(stream->device)) {
            result = queue_local_make_room(local, stream);
            if (result == CUDA_SUCCESS)
                ticket = queue_local_enqueue(local, stream, order);
        }
        pthread_mutex_unlock(&local->lock);
    }
    if (result == CUDA_SUCCESS && !ticket) {
        struct effect effect = order->effect;
        effect.finished = order->engine == ENGINE_NONE ? clock_now() : 0;
        apply(&effect);
    }
    if (result == CUDA_SUCCESS && order->engine < MODEL_ENGINES)
        stream->last_engine = order->engine;
    if (moment)
        *moment = (struct moment) {stream->device, ticket};
    return result;
}

bool queue_moment_was_passed(const struct moment *moment)
{
    return is_past(queue_local(moment->device), moment->ticket);
}

bool queue_moment_is_past(const struct moment *moment)
{
    struct local_device *local = queue_local(moment->device);
    bool past;

    if (queue_moment_was_passed(moment))
        return true;
    pthread_mutex_lock(&local->lock);
    if (!is_past(local, moment->ticket))
        queue_local_advance(local, moment->ticket);
    past = is_past(local, moment->ticket);
    pthread_mutex_unlock(&local->lock);
    return past;
}

CUresult queue_moment_wait(const struct moment *moment)
{
    struct local_device *local = queue_local(moment->device);

    if (queue_moment_was_passed(moment))
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
    struct local_device *local = queue_local(device);
    uint64_t last[MODEL_QUEUES];

    if (!local->outstanding || gate_keeper_asks())
        return;
    pthread_mutex_lock(&local->lock);
    for (unsigned int i = 0; i < MODEL_QUEUES; i++)
        last[i] = local->queues[i].last;
    for (unsigned int i = 0; i < MODEL_QUEUES; i++)
        wait_for(local, last[i]);
    pthread_mutex_unlock(&local->lock);
}

bool queue_is_ordered_work_done(uint32_t device)
{
    struct local_device *local = queue_local(device);
    bool done = true;

    if (!local->outstanding)
        return true;
    pthread_mutex_lock(&local->lock);
    queue_local_advance(local, 0);
    for (unsigned int i = 0; i < MODEL_FIRST_UNORDERED; i++)
        done &= !local->queues[i].count;
    pthread_mutex_unlock(&local->lock);
    return done;
}
