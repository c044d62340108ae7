/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c -- this process's work on each device: hands it to the model, does to bytes what is due.
 *
 * For each ticket that the model may still know there is a place in a ring here, with the effect.
 * look() brings the device's time up to now and does the effects of what is finished, in the order
 * of the tickets; work never depends on a later ticket, so that order is right for every stream.
 */
#include "queue.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define SPIN_NS      60000   /* timers are late by about as much */
#define GATE_POLL_NS 100000  /* how often a closed gate is tried */
#define NEIGHBOUR_NS 5000000 /* a neighbour that dies frees its turns */
#define ALONE_NS     100000000

struct place {
    struct effect effect;
    uint8_t queue;
    bool is_done; /* on the device */
    bool is_at_gate;
    bool is_applied; /* the effect too */
};

struct gate {
    struct gate *next;
    uint64_t ticket;
    bool (*is_open)(void *);
    void (*run)(void *);
    void *data;
};

struct local_device {
    pthread_mutex_t lock;
    pthread_cond_t gate_added;
    _Atomic uint64_t enqueued;
    _Atomic uint64_t retired; /* all up to here applied */
    struct place *ring;
    struct gate *gates; /* by ticket */
    bool has_thread;
    unsigned int users[MODEL_QUEUES];
};

static struct local_device locals[CONFIG_DEVICES];
static __thread bool keeps_gates; /* this thread must wait for nothing that it has to bring about */
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

static struct local_device *local_of(uint32_t device)
{
    pthread_once(&once, initialise);
    return &locals[device];
}

static struct place *place_of(const struct local_device *local, uint64_t ticket)
{
    return &local->ring[ticket % MODEL_RING];
}

static uint32_t number_of(const struct local_device *local)
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
    return ticket <= local->retired || place_of(local, ticket)->is_applied;
}

/* True if a stream stands at its gate: what comes next is then not for the model to say. */
static bool note_states(struct local_device *local, struct model_lane *lane)
{
    bool at_gate = false;

    for (uint64_t t = local->retired + 1; t <= local->enqueued; t++) {
        const struct model_work *work = &lane->ring[t % MODEL_RING];
        struct place *place = place_of(local, t);

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
        struct place *place = place_of(local, t);
        if (!place->is_done || place->is_applied)
            continue;
        apply(&place->effect);
        place->is_applied = true;
    }
    while (local->retired < local->enqueued && place_of(local, local->retired + 1)->is_applied)
        local->retired++;
}

/* Under local->lock. When to look again for the sake of ticket. */
static uint64_t look(struct local_device *local, uint64_t ticket)
{
    uint32_t device = number_of(local);
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
        uint64_t when = look(local, ticket);

        if (is_past(local, ticket))
            return;
        pthread_mutex_unlock(&local->lock);
        pause_until(when);
        machine_reap(process.machine, false);
        pthread_mutex_lock(&local->lock);
    }
}

/* Under local->lock. */
static CUresult make_room(struct local_device *local)
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

/* Under local->lock, with room. */
static uint64_t enqueue(struct local_device *local, struct stream *stream,
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
    place = place_of(local, ticket);
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
            look(local, local->enqueued);
        if (!queue_is_immediate(stream->device)) {
            result = make_room(local);
            if (result == CUDA_SUCCESS)
                ticket = enqueue(local, stream, order);
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

/* Under local->lock. The first gate whose stream has come to it and that may open; unlinked. */
static struct gate *take_open_gate(struct local_device *local)
{
    for (struct gate **link = &local->gates; *link; link = &(*link)->next) {
        struct gate *gate = *link;
        bool open;

        if (!place_of(local, gate->ticket)->is_at_gate)
            continue;
        if (gate->is_open) {
            /* Only this thread takes gates out, and new ones go to the end: the link stays. */
            pthread_mutex_unlock(&local->lock);
            open = gate->is_open(gate->data);
            pthread_mutex_lock(&local->lock);
            if (!open)
                continue;
        }
        *link = gate->next;
        return gate;
    }
    return NULL;
}

static void wait_for_gate(struct local_device *local, uint64_t when)
{
    struct timespec until = {
        .tv_sec = (time_t) (when / UINT64_C(1000000000)),
        .tv_nsec = (long) (when % UINT64_C(1000000000)),
    };

    pthread_cond_timedwait(&local->gate_added, &local->lock, &until);
}

/* The process's own thread for a device: host functions and gates. */
static void *keep_gates(void *argument)
{
    struct local_device *local = argument;
    uint32_t device = number_of(local);
    struct model model = machine_model(process.machine, device);

    keeps_gates = true;
    pthread_mutex_lock(&local->lock);
    while (process_page->state == PROCESS_READY) {
        struct gate *gate;
        uint64_t when;

        if (!local->gates) {
            pthread_cond_wait(&local->gate_added, &local->lock);
            continue;
        }
        when = look(local, local->gates->ticket);
        gate = take_open_gate(local);
        if (!gate) {
            wait_for_gate(local, when);
            continue;
        }
        if (gate->run) {
            pthread_mutex_unlock(&local->lock);
            gate->run(gate->data);
            pthread_mutex_lock(&local->lock);
        }
        machine_lock_device(process.machine, device);
        model_open_gate(&model, process.slot, gate->ticket, clock_now());
        machine_unlock_device(process.machine, device);
        free(gate);
        look(local, local->enqueued);
    }
    pthread_mutex_unlock(&local->lock);
    return NULL;
}

/* Under local->lock. */
static CUresult start_thread(struct local_device *local)
{
    sigset_t all, before;
    pthread_t thread;
    int failed;

    if (local->has_thread)
        return CUDA_SUCCESS;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, NULL, keep_gates, local);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_detach(thread);
    local->has_thread = true;
    return CUDA_SUCCESS;
}

CUresult stream_submit_gate(struct stream *stream, bool (*is_open)(void *), void (*run)(void *),
                            void *data)
{
    struct local_device *local = local_of(stream->device);
    struct work_order order = {.engine = ENGINE_GATE};
    struct gate **last;
    struct gate *gate = malloc(sizeof(*gate));
    CUresult result = gate ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&local->lock);
    if (result == CUDA_SUCCESS)
        result = start_thread(local);
    if (result == CUDA_SUCCESS)
        result = make_room(local);
    if (result == CUDA_SUCCESS) {
        *gate = (struct gate) {NULL, enqueue(local, stream, &order), is_open, run, data};
        for (last = &local->gates; *last; last = &(*last)->next)
            continue;
        *last = gate;
        pthread_cond_signal(&local->gate_added);
    } else {
        free(gate);
    }
    pthread_mutex_unlock(&local->lock);
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
        look(local, moment->ticket);
    past = is_past(local, moment->ticket);
    pthread_mutex_unlock(&local->lock);
    return past;
}

CUresult moment_wait(const struct moment *moment)
{
    struct local_device *local = local_of(moment->device);

    if (moment->ticket <= local->retired)
        return CUDA_SUCCESS;
    if (keeps_gates)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&local->lock);
    wait_for(local, moment->ticket);
    pthread_mutex_unlock(&local->lock);
    return CUDA_SUCCESS;
}

static bool moment_has_come(void *data)
{
    return moment_is_past(data);
}

CUresult stream_wait(struct stream *stream, const struct moment *moment)
{
    struct work_order order = {.engine = ENGINE_NONE, .after = moment->ticket};
    struct moment *copy;
    CUresult result;

    if (moment->ticket <= local_of(moment->device)->retired)
        return CUDA_SUCCESS;
    if (moment->device == stream->device)
        return stream_submit(stream, &order, NULL);
    copy = malloc(sizeof(*copy));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *moment;
    result = stream_submit_gate(stream, moment_has_come, free, copy);
    if (result != CUDA_SUCCESS)
        free(copy);
    return result;
}

void queue_drain(uint32_t device)
{
    struct local_device *local = local_of(device);

    if (local->enqueued == local->retired || keeps_gates)
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
    look(local, local->enqueued);
    for (uint64_t t = local->retired + 1; t <= local->enqueued; t++)
        done &=
            place_of(local, t)->is_applied || place_of(local, t)->queue >= MODEL_FIRST_UNORDERED;
    pthread_mutex_unlock(&local->lock);
    return done;
}
