/* SPDX-License-Identifier: Apache-2.0 */
/* slot.c -- process slots of the machine: claiming them, and reclaiming those of dead processes.
 *
 * A process owns a slot by a lock on one byte of the state file, far behind its content. A mapping
 * keeps the open file description that holds the lock; forked children inherit the mapping, as
 * NVIDIA's driver lets them inherit its open files. So the lock lasts until the last of them ends
 * or execs. Where the machine's law says that children keep nothing (fork_keeps=no), it ends with
 * the process alone.
 *
 * A claimer locks the byte and writes the slot under state->lock; a reaper tests the byte under
 * the same lock. So a slot that is being claimed is never reaped.
 */
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "clock.h"
#include "keeper.h"
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
        .law = {machine->config.law.slice_ns, machine->config.law.switch_ns},
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

static bool make_use(const struct machine *machine, uint32_t device, uint32_t slot)
{
    return machine_make_pages(machine, &machine->state->uses[device][slot],
                              sizeof(struct machine_use));
}

bool machine_make_lane(struct machine *machine, uint32_t device, uint32_t slot)
{
    uint32_t account = machine->config.devices[device].account;

    return make_use(machine, device, slot) && make_use(machine, account, slot) &&
           machine_make_pages(machine, &machine->state->lanes[device][slot],
                              offsetof(struct model_lane, places));
}

bool machine_make_places(struct machine *machine, uint32_t device, uint32_t slot, uint32_t first,
                         uint32_t count)
{
    return machine_make_pages(machine, &machine->state->lanes[device][slot].places[first],
                              count * sizeof(struct model_work));
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

/* Did the process use MIG? A process that reaps it may not know whose account a unit has. */
static bool used_units(const struct machine *machine, const struct machine_slot *record)
{
    return record->memory_files >> machine->config.device_count != 0;
}

/* Under state->lock. If the reaping process dies, the next one starts over. */
static void take_back(struct machine *machine, uint32_t slot)
{
    struct machine_slot *record = &machine->state->slots[slot];
    char path[PATH_MAX];

    share_orphan(machine, slot);
    for (uint32_t device = 0; device < machine->config.unit_count; device++) {
        struct machine_use *use = &machine->state->uses[device][slot];
        struct model model = machine_model(machine, device);

        /* Most units of MIG were never used, and reading them would allocate their pages. */
        if (device >= machine->config.device_count && !used_units(machine, record))
            continue;

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
}

static void empty_slot(struct machine *machine, uint32_t slot)
{
    take_back(machine, slot);
    atomic_store(&machine->state->slots[slot].state, SLOT_FREE);
}

/* CLOCK_MONOTONIC values of the last boot mean nothing in this one. Under state->lock. */
static void forget_time(struct machine *machine)
{
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++)
        if (machine_slot_is_live(machine, slot))
            return;
    for (uint32_t device = 0; device < machine->config.unit_count; device++) {
        struct model_device *model = &machine->state->devices[device].model;

        machine_forget_past(machine, device);
        machine_lock_device(machine, device);
        if (model->now > clock_now())
            model->now = 0;
        model->units = machine->config.devices[device].sm_count;
        machine_unlock_device(machine, device);
    }
}

uint64_t machine_pid_namespace(void)
{
    struct stat found;

    return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

/* Is the process exiting, its memory already released, or gone? Most /proc files pin a process's
 * memory while they are read, and with it the locks in question; this link does not. The pid may
 * have been reused; that costs a wait and no more. */
static bool is_exiting(uint32_t pid)
{
    char path[64], target[8];

    snprintf(path, sizeof(path), "/proc/%u/exe", (unsigned int) pid);
    return readlink(path, target, sizeof(target)) < 0 && (errno == ENOENT || errno == ESRCH);
}

/* Has a process that released its memory still a thread that may release locks? */
static bool has_threads(uint32_t pid)
{
    const struct dirent *entry;
    char path[64];
    bool found = false;
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%u/task", (unsigned int) pid);
    threads = opendir(path);
    while (threads && !found && (entry = readdir(threads))) {
        char state = entry->d_name[0] == '.' ? 'Z' : machine_thread_state(atoi(entry->d_name));
        found = state && state != 'Z' && state != 'X';
    }
    if (threads)
        closedir(threads);
    return found;
}

/* The process no longer owns its slot, but may still hold shares. */
static bool is_ending(const struct machine_slot *record, uint64_t here)
{
    return record->pid_namespace == here && is_exiting(record->pid) && has_threads(record->pid);
}

static void reap_locked(struct machine *machine)
{
    uint64_t here = machine_pid_namespace();
    int fd = machine_open_state(machine);

    if (fd < 0)
        return;
    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++) {
        struct flock lock = slot_lock(slot);

        if (machine_slot_is_live(machine, slot) && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
            lock.l_type == F_UNLCK && !is_ending(&machine->state->slots[slot], here))
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

/* Forked children keep the slot, possibly for long. */
static bool is_left_to_children(const struct machine *machine, uint32_t pid)
{
    return machine->config.law.fork_keeps && !has_threads(pid);
}

static bool has_exiting_process(const struct machine *machine)
{
    uint64_t here = machine_pid_namespace();

    for (uint32_t slot = 0; slot < machine->state->slot_limit; slot++) {
        const struct machine_slot *record = &machine->state->slots[slot];

        if (machine_slot_is_live(machine, slot) && record->pid_namespace == here &&
            is_exiting(record->pid) && !is_left_to_children(machine, record->pid))
            return true;
    }
    return false;
}

/* A dying process releases its locks one after the other: others may have seen theirs released
 * while it still holds this machine's. */
void machine_bury(struct machine *machine)
{
    machine_reap(machine, true);
    for (unsigned int step = 0; step < BURY_STEPS && has_exiting_process(machine); step++) {
        clock_sleep_until(clock_now() + BURY_STEP_NS);
        machine_reap(machine, true);
    }
}

/* The first free slot, locked by *fd*; MACHINE_SLOTS if there is none. Dead processes are reaped
 * first: exec keeps the pid, and memory that the old program held must not be shown as the new
 * one's. */
static uint32_t lock_free_slot(struct machine *machine, int fd)
{
    uint32_t slot = 0;

    reap_locked(machine);
    for (; slot < MACHINE_SLOTS; slot++) {
        struct flock lock = slot_lock(slot);
        if (!machine_slot_is_live(machine, slot) && fcntl(fd, F_OFD_SETLK, &lock) == 0)
            break;
    }
    return slot;
}

static bool make_uses(const struct machine *machine, uint32_t slot)
{
    for (uint32_t device = 0; device < machine->config.device_count; device++)
        if (!make_use(machine, device, slot))
            return false;
    return true;
}

static void describe(struct machine *machine, uint32_t slot)
{
    struct machine_slot *record = &machine->state->slots[slot];

    forget_time(machine);
    record->generation++;
    record->pid = (uint32_t) getpid();
    record->pid_namespace = machine_pid_namespace();
    record->start_time_ns = clock_read(CLOCK_REALTIME);
    record->memory_files = 0;
    atomic_store(&record->mps_server, 0);
    atomic_store(&record->mps_error, 0);
    checkpoint_begin(&machine->state->checkpoints[slot]);
    if (machine->config.law.cgroup_limits)
        cgroup_find(&machine->state->chains[slot]);
    if (machine->state->slot_limit <= slot)
        machine->state->slot_limit = slot + 1;
    atomic_store(&record->state, SLOT_LIVE);
}

/* Under state->lock. The caller must keep the lock on *fd*. */
static int claim_locked(struct machine *machine, int fd)
{
    uint32_t slot = lock_free_slot(machine, fd);

    if (slot == MACHINE_SLOTS) {
        fprintf(stderr, "pyvgpu simulator: %s: no room for one more process (at most %d)\n",
                machine->folder, MACHINE_SLOTS);
        return -1;
    }
    if (!make_uses(machine, slot) ||
        !machine_make_pages(machine, &machine->state->checkpoints[slot],
                            sizeof(struct machine_checkpoint)))
        return -1;
    describe(machine, slot);
    return (int) slot;
}

int machine_claim_slot(struct machine *machine)
{
    int fd = keeper_begin(machine);
    int slot = -1;

    if (fd < 0) {
        fprintf(stderr, "pyvgpu simulator: %s/state: cannot be opened: %s\n", machine->folder,
                strerror(errno));
    } else {
        machine_lock_slots(machine);
        slot = claim_locked(machine, fd);
        machine_unlock_slots(machine);
    }
    if (!keeper_end(machine, fd, slot >= 0))
        return -1;
    machine_name_owner(machine, (uint32_t) slot);
    return slot;
}

/* The process keeps the slot: it may hold shares until it ends, and other threads may be
 * allocating. */
void machine_release_slot(struct machine *machine, uint32_t slot)
{
    machine_lock_slots(machine);
    if (machine_slot_is_live(machine, slot))
        take_back(machine, slot);
    share_reap(machine);
    machine_unlock_slots(machine);
}
