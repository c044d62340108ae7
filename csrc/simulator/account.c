/* SPDX-License-Identifier: Apache-2.0 */
/* account.c -- memory accounting of a device: bytes by process, their sum and its peak.
 *
 * uses[] and the shares on their own are authoritative; their sum is kept beside them, so that the
 * peak is that of an instant and not of a walk over words that change. If a process dies between
 * the two updates, the next one recomputes the sum.
 *
 * A dying process releases its locks one after the other, so other processes may get its memory
 * while it still counts. A call that finds a new peak therefore reaps dead processes after it and
 * subtracts their bytes from the peak.
 */
#include "clock.h"
#include "share.h"

/* A process that execs releases its locks one by one, too, and other processes cannot see it. This
 * is longer than that takes, even if the process is preempted meanwhile.
 */
#define EXEC_NS 50000000

static uint64_t add_up(const struct machine *machine, uint32_t device)
{
    const struct machine_use *uses = machine->state->uses[device];
    uint32_t limit = atomic_load_explicit(&machine->state->slot_limit, memory_order_acquire);
    uint64_t sum = share_left_bytes(machine, device);

    for (uint32_t slot = 0; slot < limit; slot++)
        sum += atomic_load(&uses[slot].bytes);
    return sum;
}

static struct machine_account *lock_account(struct machine *machine, uint32_t device)
{
    struct machine_account *account = &machine->state->accounts[device];

    if (machine_lock(&account->lock))
        account->used = add_up(machine, device);
    return account;
}

/* Account locked. Changes in quick succession are one note. */
static void note_past(struct machine *machine, uint32_t device)
{
    uint64_t late_ns = machine->config.law.nvml_memory_late_ns;
    struct machine_past *past = &machine->state->pasts[device];
    uint64_t used = machine->state->accounts[device].used;
    uint64_t last = past->count ? past->count - 1 : 0;
    uint64_t now;

    if (!late_ns || (past->count && past->notes[last % MACHINE_NOTES].used == used))
        return;
    now = clock_now();
    if (!past->count ||
        now - past->notes[last % MACHINE_NOTES].since_ns >= late_ns / (MACHINE_NOTES / 2)) {
        last = past->count++;
        past->notes[last % MACHINE_NOTES].since_ns = now;
    }
    past->notes[last % MACHINE_NOTES].used = used;
}

static void unlock_account(struct machine *machine, uint32_t device)
{
    note_past(machine, device);
    pthread_mutex_unlock(&machine->state->accounts[device].lock);
}

/* Account locked. */
static uint64_t find_past(const struct machine_past *past, uint64_t at)
{
    uint64_t oldest = past->count > MACHINE_NOTES ? past->count - MACHINE_NOTES : 0;

    for (uint64_t note = past->count; note > oldest; note--)
        if (past->notes[(note - 1) % MACHINE_NOTES].since_ns <= at)
            return past->notes[(note - 1) % MACHINE_NOTES].used;
    return oldest ? past->notes[oldest % MACHINE_NOTES].used : 0;
}

/* The account of a MIG unit is that of its GPU instance; functions from here on take units. */
static uint32_t account_of(const struct machine *machine, uint32_t device)
{
    return machine->config.devices[device].account;
}

uint64_t machine_used_bytes(const struct machine *machine, uint32_t device)
{
    device = account_of(machine, device);
    return __atomic_load_n(&machine->state->accounts[device].used, __ATOMIC_RELAXED);
}

uint64_t machine_shown_bytes(struct machine *machine, uint32_t device)
{
    uint64_t late_ns = machine->config.law.nvml_memory_late_ns;
    uint64_t shown;

    device = account_of(machine, device);
    if (!late_ns)
        return machine_used_bytes(machine, device);
    lock_account(machine, device);
    shown = find_past(&machine->state->pasts[device], clock_now() - late_ns);
    unlock_account(machine, device);
    return shown;
}

void machine_forget_past(struct machine *machine, uint32_t device)
{
    struct machine_past *past = &machine->state->pasts[device];

    lock_account(machine, device);
    if (past->count && past->notes[(past->count - 1) % MACHINE_NOTES].since_ns > clock_now())
        past->count = 0;
    unlock_account(machine, device);
}

/* The limit of this process as a client of MPS. */
static bool own_limit_allows(const struct machine *machine, uint32_t device, uint32_t slot,
                             uint64_t bytes)
{
    uint64_t limit = machine->memory_limits[device];

    return !limit || machine->own != &machine->state->checkpoints[slot] ||
           atomic_load(&machine->state->uses[device][slot].bytes) + bytes <= limit;
}

/* Account locked. Add the bytes and return the sum in use; 0 if they do not fit. */
static uint64_t add(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    struct machine_account *account = &machine->state->accounts[device];

    if (account->used > machine->config.devices[device].memory_bytes - bytes ||
        !own_limit_allows(machine, device, slot, bytes) ||
        !cgroup_allows(machine, device, slot, bytes))
        return 0;
    atomic_fetch_add(&machine->state->uses[device][slot].bytes, bytes);
    account->used += bytes;
    return account->used;
}

/* Account locked. */
static void add_up_again(const struct machine *machine, struct machine_account *account,
                         uint32_t device)
{
    uint64_t before = account->used;

    account->used = add_up(machine, device);
    if (before > account->used)
        account->buried += before - account->used;
}

/* Record a peak of *used*; *buried* is account->buried at that time. */
static void note_peak(struct machine *machine, uint32_t device, uint64_t used, uint64_t buried)
{
    struct machine_account *account;

    clock_sleep_until(clock_now() + EXEC_NS);
    machine_bury(machine);
    account = lock_account(machine, device);
    buried = account->buried - buried;
    if (used > buried && account->peak < used - buried)
        account->peak = used - buried;
    unlock_account(machine, device);
}

bool machine_charge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    device = account_of(machine, device);
    if (bytes > machine->config.devices[device].memory_bytes)
        return false;
    for (bool is_buried = false;; is_buried = true) {
        struct machine_account *account = lock_account(machine, device);
        uint64_t used = add(machine, device, slot, bytes);
        uint64_t buried = account->buried;
        bool is_peak = used > account->peak;

        unlock_account(machine, device);
        if (is_peak)
            note_peak(machine, device, used, buried);
        if (used || !bytes || is_buried)
            return used || !bytes;
        machine_bury(machine); /* no allocation fails because of a dead process */
    }
}

void machine_discharge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    struct machine_account *account;

    device = account_of(machine, device);
    account = lock_account(machine, device);
    atomic_fetch_sub(&machine->state->uses[device][slot].bytes, bytes);
    account->used -= bytes;
    unlock_account(machine, device);
}

void machine_discharge_all(struct machine *machine, uint32_t device, uint32_t slot)
{
    struct machine_account *account = lock_account(machine, device);

    atomic_store(&machine->state->uses[device][slot].bytes, 0);
    add_up_again(machine, account, device);
    unlock_account(machine, device);
}

void machine_lift(struct machine *machine, uint32_t device, uint32_t slot, uint64_t *bytes)
{
    struct machine_account *account = lock_account(machine, device);
    uint64_t held = atomic_load(&machine->state->uses[device][slot].bytes);

    *bytes += held;
    atomic_store(&machine->state->uses[device][slot].bytes, 0);
    account->used -= held;
    unlock_account(machine, device);
}

uint64_t machine_charge_rest(struct machine *machine, uint32_t device, uint32_t slot,
                             uint64_t bytes)
{
    struct machine_account *account = lock_account(machine, device);
    uint64_t total = machine->config.devices[device].memory_bytes;
    uint64_t left = account->used < total ? total - account->used : 0;
    uint64_t given = bytes < left ? bytes : left;

    given = add(machine, device, slot, given) ? given : 0;
    unlock_account(machine, device);
    return given;
}

void machine_leave(struct machine *machine, struct machine_share *share)
{
    uint32_t device = account_of(machine, share->device);

    lock_account(machine, device);
    atomic_store(&share->state, SHARE_LEFT);
    atomic_fetch_sub(&machine->state->uses[device][share->slot].bytes, atomic_load(&share->bytes));
    unlock_account(machine, device);
}

void machine_recount(struct machine *machine, uint32_t device)
{
    struct machine_account *account;

    device = account_of(machine, device);
    account = lock_account(machine, device);
    add_up_again(machine, account, device);
    unlock_account(machine, device);
}
