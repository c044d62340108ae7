/* SPDX-License-Identifier: Apache-2.0 */
/* slot.c -- who lives in the machine, what they hold, and taking it back from the dead.
 *
 * A slot is owned by a lock on one byte of the state file, far behind its content. The open file
 * description that holds it is kept by a mapping alone, which a fork does not inherit; so the lock
 * goes with the process, and nothing else takes it away.
 *
 * A claimer has the byte before it writes the slot, and writes it under state->lock; a reaper
 * looks at the byte under the same lock. So nobody reaps a slot that is being claimed.
 */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "share.h"

#define LOCK_OFFSET    (INT64_C(1) << 40)
#define REAP_PERIOD_NS 50000000
#define BURY_STEP_NS   100000
#define BURY_STEPS     20000 /* two seconds */

int machine_open_state(const struct machine *machine)
{
    char path[MACHINE_PATH + 32];

    snprintf(path, sizeof(path), "%s/state", machine->folder);
    return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
}

static struct flock slot_lock(uint32_t slot)
{
    return (struct flock) {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = LOCK_OFFSET + slot,
        .l_len = 1,
    };
}

static struct model_lane *find_lane(void *context, uint32_t lane)
{
    return (struct model_lane *) context + lane;
}

struct model machine_model(struct machine *machine, uint32_t device)
{
    return (struct model) {
        .device = &machine->state->devices[device].model,
        .find_lane = find_lane,
        .context = machine->state->lanes[device],
    };
}

bool machine_make_pages(const struct machine *machine, const void *from, size_t size)
{
    uintptr_t start = (uintptr_t) from & ~(uintptr_t) 4095;

    if (madvise((void *) start, (uintptr_t) from + size - start, MADV_POPULATE_WRITE) == 0 ||
        errno == EINVAL)
        return true;
    fprintf(stderr,
            "pyvgpu simulator: %s/state: there is no room for it: is the file system full?\n",
            machine->folder);
    return false;
}

bool machine_make_lane(struct machine *machine, uint32_t device, uint32_t slot)
{
    return machine_make_pages(machine, &machine->state->lanes[device][slot],
                              sizeof(struct model_lane));
}

void machine_advance_device(struct machine *machine, uint32_t device)
{
    struct model model = machine_model(machine, device);

    machine_lock_device(machine, device);
    while (!model_advance(&model, clock_now())) {
        machine_unlock_device(machine, device);
        machine_lock_device(machine, device);
    }
}

void machine_memory_path(const struct machine *machine, uint32_t slot, uint64_t generation,
                         uint32_t device, char *path, size_t size)
{
    snprintf(path, size, "%s/memory.%u.%llu.%u", machine->folder, (unsigned int) slot,
             (unsigned long long) generation, (unsigned int) device);
}

/* Under state->lock. Done again from the start if whoever does it dies. */
static void empty_slot(struct machine *machine, uint32_t slot)
{
    struct machine_slot *record = &machine->state->slots[slot];
    char path[PATH_MAX];

    share_orphan(machine, slot);
    for (uint32_t device = 0; device < machine->config.device_count; device++) {
        struct machine_use *use = &machine->state->uses[device][slot];
        struct model model = machine_model(machine, device);

        machine_lock_device(machine, device);
        model_reset_lane(&model, slot);
        machine_unlock_device(machine, device);
        atomic_store(&use->contexts, 0);
        machine_discharge_all(machine, device, slot);
        if (record->memory_files & UINT64_C(1) << device) {
            machine_memory_path(machine, slot, record->generation, device, path, sizeof(path));
            unlink(path);
        }
    }
    record->memory_files = 0;
    atomic_store(&record->state, SLOT_FREE);
}

/* The clock of the last boot says nothing about this one. Under state->lock. */
static void forget_time(struct machine *machine)
{
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++)
        if (machine_slot_is_live(machine, slot))
            return;
    for (uint32_t device = 0; device < machine->config.device_count; device++) {
        struct model_device *model = &machine->state->devices[device].model;

        machine_lock_device(machine, device);
        if (model->now > clock_now())
            model->now = 0;
        model->units = machine->config.devices[device].sm_count;
        machine_unlock_device(machine, device);
    }
}

static void reap_locked(struct machine *machine)
{
    int fd = machine_open_state(machine);

    if (fd < 0)
        return;
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++) {
        struct flock lock = slot_lock(slot);

        if (machine_slot_is_live(machine, slot) && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
            lock.l_type == F_UNLCK)
            empty_slot(machine, slot);
    }
    close(fd);
    share_reap(machine);
    atomic_store(&machine->state->reaped_ns, clock_coarse());
}

static bool was_just_reaped(const struct machine *machine)
{
    uint64_t last = atomic_load_explicit(&machine->state->reaped_ns, memory_order_relaxed);
    uint64_t now = clock_coarse();

    return now >= last && now - last < REAP_PERIOD_NS;
}

void machine_reap(struct machine *machine, bool now)
{
    if (!now && was_just_reaped(machine))
        return;
    machine_lock_slots(machine);
    reap_locked(machine);
    machine_unlock_slots(machine);
}

/* Is the process that had this number when it claimed the slot on its way out of the kernel? The
 * number may mean another one by now, or in this PID namespace; that costs a wait and no more. */
static bool is_exiting(uint32_t pid)
{
    enum { PF_EXITING = 4 };
    unsigned int flags = 0, threads = 0;
    char path[64], line[512];
    const char *name_end;
    char state = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%u/stat", (unsigned int) pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    name_end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
    fclose(file);
    if (!name_end || sscanf(name_end,
                            ") %c %*d %*d %*d %*d %*d %u %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d "
                            "%u",
                            &state, &flags, &threads) != 3)
        return false;
    return flags & PF_EXITING && (state != 'Z' || threads > 1); /* all of a zombie is gone */
}

static bool somebody_is_exiting(const struct machine *machine)
{
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++)
        if (machine_slot_is_live(machine, slot) && is_exiting(machine->state->slots[slot].pid))
            return true;
    return false;
}

/* A process that dies lets go of its locks one after the other. Others may have seen that it let
 * go of theirs while it still has this machine's. */
void machine_bury(struct machine *machine)
{
    machine_reap(machine, true);
    for (unsigned int step = 0; step < BURY_STEPS && somebody_is_exiting(machine); step++) {
        clock_sleep_until(clock_now() + BURY_STEP_NS);
        machine_reap(machine, true);
    }
}

static void claim_locked(struct machine *machine, uint32_t slot)
{
    struct machine_slot *record = &machine->state->slots[slot];

    if (machine_slot_is_live(machine, slot))
        empty_slot(machine, slot);
    if (!was_just_reaped(machine))
        reap_locked(machine);
    share_reap(machine);
    forget_time(machine);
    record->generation++;
    record->pid = (uint32_t) getpid();
    record->start_time_ns = clock_read(CLOCK_REALTIME);
    record->memory_files = 0;
    if (machine->state->slot_limit <= slot)
        machine->state->slot_limit = slot + 1;
    atomic_store(&record->state, SLOT_LIVE);
}

int machine_claim_slot(struct machine *machine)
{
    uint32_t slot = 0;
    void *keeper;
    int fd = machine_open_state(machine);

    if (fd < 0) {
        fprintf(stderr, "pyvgpu simulator: %s/state: cannot be opened: %s\n", machine->folder,
                strerror(errno));
        return -1;
    }
    for (; slot < MACHINE_SLOTS; slot++) {
        struct flock lock = slot_lock(slot);
        if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
            break;
    }
    keeper = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (slot == MACHINE_SLOTS || keeper == MAP_FAILED || madvise(keeper, 4096, MADV_DONTFORK)) {
        fprintf(stderr, "pyvgpu simulator: %s: no room for one more process (at most %d)\n",
                machine->folder, MACHINE_SLOTS);
        if (keeper != MAP_FAILED)
            munmap(keeper, 4096);
        return -1;
    }
    for (uint32_t device = 0; device < machine->config.device_count; device++)
        if (!machine_make_pages(machine, &machine->state->uses[device][slot],
                                sizeof(struct machine_use))) {
            munmap(keeper, 4096);
            return -1;
        }
    machine_lock_slots(machine);
    claim_locked(machine, slot);
    machine_unlock_slots(machine);
    return (int) slot;
}

void machine_release_slot(struct machine *machine, uint32_t slot)
{
    machine_lock_slots(machine);
    if (machine_slot_is_live(machine, slot))
        empty_slot(machine, slot);
    share_reap(machine);
    machine_unlock_slots(machine);
}
