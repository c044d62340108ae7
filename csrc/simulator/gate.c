/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c -- gates, where a stream waits for a condition outside its device, and their thread.
 *
 * The model holds a stream at its gate. A thread of this process, one for each device, polls
 * whether the gate may open: a host function has run, or work on another device is done.
 */
#include <signal.h>
#include <stdlib.h>

#include "clock.h"
#include "queue.h"
#include "queue_parts.h"

static __thread bool keeps_gates;

bool gate_keeper_asks(void)
{
    return keeps_gates;
}

/* Under local->lock. Unlink the first gate that its stream has reached and that may open. */
static struct gate *take_open_gate(struct local_device *local)
{
    for (struct gate **link = &local->gates; *link; link = &(*link)->next) {
        struct gate *gate = *link;
        bool open;

        if (!queue_local_place(local, gate->ticket)->is_at_gate)
            continue;
        if (gate->is_open) {
            /* Only this thread removes gates, and new ones go to the end: the link stays valid. */
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
    uint32_t device = queue_local_number(local);
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
        when = queue_local_advance(local, local->gates->ticket);
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
        /* Work behind the gate begins now, not at the device's last update. */
        machine_advance_device(process.machine, device);
        model_open_gate(&model, process.slot, gate->ticket, model.device->now);
        machine_unlock_device(process.machine, device);
        free(gate);
        queue_local_advance(local, 0);
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

CUresult gate_submit(struct stream *stream, bool (*is_open)(void *), void (*run)(void *),
                     void *data)
{
    struct local_device *local = queue_local(stream->device);
    struct work_order order = {.engine = ENGINE_GATE};
    struct gate **last;
    struct gate *gate = malloc(sizeof(*gate));
    CUresult result = gate ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&local->lock);
    if (result == CUDA_SUCCESS)
        result = start_thread(local);
    if (result == CUDA_SUCCESS)
        result = queue_local_make_room(local, stream);
    if (result == CUDA_SUCCESS) {
        *gate =
            (struct gate) {NULL, queue_local_enqueue(local, stream, &order), is_open, run, data};
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

static bool moment_has_come(void *data)
{
    return queue_moment_is_past(data);
}

CUresult gate_wait(struct stream *stream, const struct moment *moment)
{
    struct work_order order = {.engine = ENGINE_NONE, .after = moment->ticket};
    struct moment *copy;
    CUresult result;

    if (queue_moment_was_passed(moment))
        return CUDA_SUCCESS;
    if (moment->device == stream->device)
        return queue_submit(stream, &order, NULL);
    copy = malloc(sizeof(*copy));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *moment;
    result = gate_submit(stream, moment_has_come, free, copy);
    if (result != CUDA_SUCCESS)
        free(copy);
    return result;
}
