/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c -- lock, checkpoint, restore and unlock a process; see checkpoint.h. */
#include "checkpoint.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "fault.h"
#include "share.h"

#define POLL_NS    200000
#define STEP_NS    5000000  /* between polls of a target during a copy */
#define TIMEOUT_NS 50000000 /* between polls by a target of the process that locks it */
#define MS         UINT64_C(1000000)
#define SECOND     UINT64_C(1000000000)

struct target {
    struct machine *machine;
    struct machine_checkpoint *record;
    uint32_t slot;
    uint64_t generation;
    int pid;
};

/* --- the process itself ----------------------------------------------------------------------- */

static void set_state(struct machine_checkpoint *record, enum checkpoint_state state)
{
    atomic_store(&record->state, state);
    syscall(SYS_futex, &record->state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void checkpoint_begin(struct machine_checkpoint *record)
{
    if (!record->is_ready)
        machine_make_lock(&record->lock);
    record->is_ready = 1;
    for (unsigned int i = 0; i < MACHINE_INSIDE; i++)
        atomic_store(&record->inside[i].count, 0);
    atomic_store(&record->managed, 0);
    atomic_store(&record->imports, 0);
    atomic_store(&record->fabric, 0);
    record->restores = 0;
    record->is_spoiled = record->pending = 0;
    memset(record->held, 0, sizeof(record->held));
    atomic_store(&record->state, CHECKPOINT_RUNNING);
}

/* The lock is held, and its last holder died in an action: a process that was not locked yet goes
 * on. Copies that have begun are not undone (finish). */
static void recover(struct machine_checkpoint *record)
{
    if (atomic_load(&record->state) == CHECKPOINT_LOCKING)
        set_state(record, CHECKPOINT_RUNNING);
}

/* A process that was locking this one may have died. */
static void check_locker(struct machine_checkpoint *record)
{
    int result;

    if (atomic_load(&record->state) != CHECKPOINT_LOCKING)
        return;
    result = pthread_mutex_trylock(&record->lock);
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(&record->lock);
    if (result != 0 && result != EOWNERDEAD)
        return;
    recover(record);
    pthread_mutex_unlock(&record->lock);
}

struct machine_inside *checkpoint_counter(struct machine_checkpoint *record)
{
    static _Atomic uint32_t threads;

    return &record->inside[atomic_fetch_add(&threads, 1) % MACHINE_INSIDE];
}

static bool has_calls(const struct machine_checkpoint *record)
{
    for (unsigned int i = 0; i < MACHINE_INSIDE; i++)
        if (atomic_load(&record->inside[i].count))
            return true;
    return false;
}

void checkpoint_wait(struct machine_checkpoint *record, struct machine_inside *inside)
{
    const struct timespec timeout = {.tv_nsec = TIMEOUT_NS};
    uint32_t state;

    for (;;) {
        checkpoint_leave(inside);
        while ((state = atomic_load(&record->state)) != CHECKPOINT_RUNNING) {
            syscall(SYS_futex, &record->state, FUTEX_WAIT, state, &timeout, NULL, 0);
            check_locker(record);
        }
        atomic_fetch_add(&inside->count, 1);
        if (atomic_load(&record->state) == CHECKPOINT_RUNNING)
            return;
    }
}

/* --- finding a process ------------------------------------------------------------------------ */

/* The process of a thread: its id and its user; 0 if there is none. */
static int find_process(int thread, unsigned int *user, char *state)
{
    char path[64], line[256];
    int process = 0;
    FILE *file;

    *state = '\0';
    snprintf(path, sizeof(path), "/proc/%d/status", thread);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        sscanf(line, "State: %c", state);
        sscanf(line, "Tgid: %d", &process);
        sscanf(line, "Uid: %u", user);
    }
    if (file)
        fclose(file);
    return process;
}

static enum checkpoint_result find(struct machine *machine, int pid, struct target *target)
{
    unsigned int user = 0;
    char state;
    int process = find_process(pid, &user, &state);

    if (!process || (geteuid() && geteuid() != user))
        return CHECKPOINT_NO_PROCESS;
    if (state == 'Z' || state == 'X')
        return CHECKPOINT_NO_CUDA;
    machine_reap(machine, true);
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++)
        if (machine_slot_is_live(machine, slot) &&
            machine_owner(machine, slot) == (uint32_t) process) {
            *target = (struct target) {
                .machine = machine,
                .record = &machine->state->checkpoints[slot],
                .slot = slot,
                .generation = machine->state->slots[slot].generation,
                .pid = process,
            };
            return CHECKPOINT_DONE;
        }
    return CHECKPOINT_NO_CUDA;
}

static bool is_dead(const struct target *target)
{
    char state = machine_thread_state(target->pid);

    return !state || state == 'Z' || state == 'X' ||
           !machine_slot_is_live(target->machine, target->slot) ||
           target->machine->state->slots[target->slot].generation != target->generation;
}

/* Threads of the target do the work, so nothing happens while it is stopped. False: it has ended.
 */
static bool wait_while_stopped(const struct target *target)
{
    while (machine_thread_state(target->pid) == 'T')
        clock_sleep_until(clock_now() + POLL_NS);
    return !is_dead(target);
}

/* --- actions ---------------------------------------------------------------------------------- */

/* False: the target has ended. */
static bool wait_until(const struct target *target, uint64_t when)
{
    for (uint64_t now = clock_now(); now < when; now = clock_now()) {
        if (!wait_while_stopped(target))
            return false;
        clock_sleep_until(when - now < STEP_NS ? when : now + STEP_NS);
    }
    return !is_dead(target);
}

/* End the copy that has begun, which a process that died may have left. */
static enum checkpoint_result finish(const struct target *target)
{
    struct machine_checkpoint *record = target->record;
    enum checkpoint_state next = (enum checkpoint_state) record->pending;

    if (!next)
        return CHECKPOINT_DONE;
    if (!wait_until(target, record->due_ns))
        return CHECKPOINT_NO_PROCESS;
    for (uint32_t device = 0; device < target->machine->config.device_count; device++) {
        if (next == CHECKPOINT_CHECKPOINTED)
            machine_lift(target->machine, device, target->slot, &record->held[device]);
        else
            record->held[device] = 0;
    }
    record->restores += next == CHECKPOINT_LOCKED;
    set_state(record, next);
    record->pending = 0;
    return CHECKPOINT_DONE;
}

/* Find the process and lock its record. Call end() if this succeeds. */
static enum checkpoint_result begin(struct machine *machine, int pid, struct target *target)
{
    enum checkpoint_result result = find(machine, pid, target);

    if (result != CHECKPOINT_DONE)
        return result;
    if (machine_lock(&target->record->lock))
        recover(target->record);
    result = wait_while_stopped(target) ? finish(target) : CHECKPOINT_NO_PROCESS;
    if (result != CHECKPOINT_DONE)
        pthread_mutex_unlock(&target->record->lock);
    return result;
}

static enum checkpoint_result end(const struct target *target, enum checkpoint_result result)
{
    pthread_mutex_unlock(&target->record->lock);
    return result;
}

/* begin() for a call that only a process in this *state* allows. */
static enum checkpoint_result begin_in(struct machine *machine, int pid,
                                       enum checkpoint_state state, struct target *target)
{
    enum checkpoint_result result = begin(machine, pid, target);

    if (result == CHECKPOINT_DONE &&
        (enum checkpoint_state) atomic_load(&target->record->state) != state)
        result = end(target, CHECKPOINT_WRONG_STATE);
    return result;
}

enum checkpoint_result checkpoint_read(struct machine *machine, int pid,
                                       enum checkpoint_state *state)
{
    struct target target;
    enum checkpoint_result result = begin(machine, pid, &target);

    if (result != CHECKPOINT_DONE)
        return result;
    *state = (enum checkpoint_state) atomic_load(&target.record->state);
    return end(&target, CHECKPOINT_DONE);
}

static bool has_work(const struct target *target)
{
    struct machine *machine = target->machine;
    bool found = false;

    for (uint32_t device = 0; device < machine->config.unit_count && !found; device++) {
        if (!atomic_load(&machine->state->uses[device][target->slot].contexts))
            continue;
        machine_advance_device(machine, device);
        found = machine->state->lanes[device][target->slot].filled;
        machine_unlock_device(machine, device);
    }
    return found;
}

enum checkpoint_result checkpoint_lock(struct machine *machine, int pid, unsigned int timeout_ms)
{
    uint64_t until = timeout_ms ? clock_now() + timeout_ms * MS : UINT64_MAX;
    struct target target;
    enum checkpoint_result result = begin_in(machine, pid, CHECKPOINT_RUNNING, &target);

    if (result != CHECKPOINT_DONE)
        return result;
    set_state(target.record, CHECKPOINT_LOCKING);
    while (has_calls(target.record) || has_work(&target)) {
        if (!wait_while_stopped(&target))
            result = CHECKPOINT_NO_PROCESS;
        else if (clock_now() >= until)
            result = CHECKPOINT_TIMED_OUT;
        if (result != CHECKPOINT_DONE) {
            set_state(target.record, CHECKPOINT_RUNNING);
            return end(&target, result);
        }
        clock_sleep_until(clock_now() + POLL_NS);
    }
    set_state(target.record, CHECKPOINT_LOCKED);
    return end(&target, CHECKPOINT_DONE);
}

static bool is_shared(const struct target *target)
{
    const struct machine_state *state = target->machine->state;

    if (atomic_load(&target->record->imports))
        return true;
    for (uint32_t share = 0; share < state->share_limit; share++)
        if (atomic_load(&state->shares[share].state) == SHARE_OWNED &&
            state->shares[share].slot == target->slot &&
            share_is_held(target->machine, (int) share, false))
            return true;
    return false;
}

static bool is_on_mig(const struct target *target)
{
    const struct machine_config *config = &target->machine->config;

    fault_poll(target->machine);
    for (uint32_t device = 0; device < config->unit_count; device++)
        if (atomic_load(&target->machine->state->uses[device][target->slot].contexts) &&
            (device >= config->device_count || fault_is_mig(device)))
            return true;
    return false;
}

/* How long it takes to move the bytes of each device, one device after the other. */
static uint64_t copy_ns(const struct target *target, const uint64_t *bytes, uint64_t percent)
{
    const struct machine_config *config = &target->machine->config;
    double seconds = 0;

    for (uint32_t device = 0; device < config->device_count && !config->free_mode; device++)
        seconds += (double) bytes[device] * 100 /
                   ((double) config->devices[device].pcie_bandwidth * (double) percent);
    return (uint64_t) (seconds * (double) SECOND);
}

static enum checkpoint_result copy(struct target *target, enum checkpoint_state next, uint64_t ns)
{
    target->record->due_ns = clock_now() + ns;
    target->record->pending = next;
    return end(target, finish(target));
}

/* NVIDIA's driver does not come back from a checkpoint of such memory. */
static bool hang(const struct target *target)
{
    while (atomic_load(&target->record->fabric)) {
        if (!wait_while_stopped(target))
            return false;
        clock_sleep_until(clock_now() + POLL_NS);
    }
    return !is_dead(target);
}

enum checkpoint_result checkpoint_save(struct machine *machine, int pid)
{
    uint64_t bytes[CONFIG_DEVICES] = {0};
    struct target target;
    enum checkpoint_result result = begin_in(machine, pid, CHECKPOINT_LOCKED, &target);

    if (result != CHECKPOINT_DONE)
        return result;
    if (atomic_load(&machine->state->slots[target.slot].mps_server) ||
        atomic_load(&target.record->managed) || is_shared(&target))
        return end(&target, CHECKPOINT_NOT_SUPPORTED);
    if (is_on_mig(&target))
        return end(&target, CHECKPOINT_NO_MEMORY);
    if (!hang(&target))
        return end(&target, CHECKPOINT_NO_PROCESS);
    for (uint32_t device = 0; device < machine->config.device_count; device++)
        bytes[device] = atomic_load(&machine->state->uses[device][target.slot].bytes);
    return copy(&target, CHECKPOINT_CHECKPOINTED,
                copy_ns(&target, bytes, machine->config.law.checkpoint_percent));
}

/* False: a device has too little room. What was got stays. */
static bool charge_again(const struct target *target)
{
    for (uint32_t device = 0; device < target->machine->config.device_count; device++) {
        uint64_t bytes = target->record->held[device];

        if (!bytes || machine_charge(target->machine, device, target->slot, bytes))
            continue;
        machine_charge_rest(target->machine, device, target->slot, bytes);
        return false;
    }
    return true;
}

enum checkpoint_result checkpoint_restore(struct machine *machine, int pid)
{
    struct target target;
    enum checkpoint_result result = begin_in(machine, pid, CHECKPOINT_CHECKPOINTED, &target);

    if (result != CHECKPOINT_DONE)
        return result;
    if (target.record->is_spoiled)
        return end(&target, CHECKPOINT_NO_PROCESS);
    if (!charge_again(&target)) {
        target.record->is_spoiled = 1;
        return end(&target, CHECKPOINT_NO_MEMORY);
    }
    return copy(&target, CHECKPOINT_LOCKED,
                copy_ns(&target, target.record->held, machine->config.law.restore_percent));
}

enum checkpoint_result checkpoint_unlock(struct machine *machine, int pid)
{
    struct target target;
    enum checkpoint_result result = begin_in(machine, pid, CHECKPOINT_LOCKED, &target);

    if (result != CHECKPOINT_DONE)
        return result;
    set_state(target.record, CHECKPOINT_RUNNING);
    return end(&target, CHECKPOINT_DONE);
}
