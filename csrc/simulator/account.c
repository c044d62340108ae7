/* SPDX-License-Identifier: Apache-2.0 */
/* account.c -- the bytes of a device: whose they are, and the most there ever were.
 *
 * The words of uses[] and of shares on their own are what counts; their sum is kept beside them, so
 * that the peak is that of an instant and not of a walk over words that change. If somebody dies
 * between the two, the next one adds them up.
 */
#include "share.h"

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

uint64_t machine_used_bytes(const struct machine *machine, uint32_t device)
{
    return __atomic_load_n(&machine->state->accounts[device].used, __ATOMIC_RELAXED);
}

/* Account locked. */
static void add(struct machine_account *account, struct machine_use *use, uint64_t bytes)
{
    atomic_fetch_add(&use->bytes, bytes);
    account->used += bytes;
    if (account->peak < account->used)
        account->peak = account->used;
}

bool machine_charge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    uint64_t room = machine->config.devices[device].memory_bytes;
    bool is_buried = false;

    if (bytes > room)
        return false;
    for (;;) {
        struct machine_account *account = lock_account(machine, device);
        bool fits = account->used <= room - bytes;
        bool is_new_peak = account->used + bytes > account->peak;

        if (fits && (is_buried || !is_new_peak))
            add(account, &machine->state->uses[device][slot], bytes);
        pthread_mutex_unlock(&account->lock);
        if (is_buried || (fits && !is_new_peak))
            return fits;
        /* Neither a refusal nor a peak is the doing of the dead. */
        machine_bury(machine);
        is_buried = true;
    }
}

void machine_discharge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    struct machine_account *account = lock_account(machine, device);

    atomic_fetch_sub(&machine->state->uses[device][slot].bytes, bytes);
    account->used -= bytes;
    pthread_mutex_unlock(&account->lock);
}

void machine_discharge_all(struct machine *machine, uint32_t device, uint32_t slot)
{
    struct machine_account *account = lock_account(machine, device);

    atomic_store(&machine->state->uses[device][slot].bytes, 0);
    account->used = add_up(machine, device);
    pthread_mutex_unlock(&account->lock);
}

void machine_leave(struct machine *machine, struct machine_share *share)
{
    struct machine_account *account = lock_account(machine, share->device);

    atomic_store(&share->state, SHARE_LEFT);
    atomic_fetch_sub(&machine->state->uses[share->device][share->slot].bytes,
                     atomic_load(&share->bytes));
    pthread_mutex_unlock(&account->lock);
}

void machine_recount(struct machine *machine, uint32_t device)
{
    struct machine_account *account = lock_account(machine, device);

    account->used = add_up(machine, device);
    pthread_mutex_unlock(&account->lock);
}
