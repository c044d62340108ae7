/* SPDX-License-Identifier: Apache-2.0 */
/* share.c -- the table of shares, and the locks of their holders.
 *
 * A holder tests and locks a share under state->lock, and an owner ends it under the same lock. So
 * a share that is held is never freed.
 */
#include "share.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeper.h"

#define HELD_OFFSET (INT64_C(1) << 41) /* read locks here: the share is held */
#define OPEN_OFFSET (INT64_C(1) << 42) /* and here: its memory is open */

static struct machine_share *record_of(const struct machine *machine, int share)
{
    return &machine->state->shares[share];
}

static bool lock_byte(int fd, off_t byte)
{
    struct flock lock = {
        .l_type = F_RDLCK,
        .l_whence = SEEK_SET,
        .l_start = byte,
        .l_len = 1,
    };

    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool is_locked(int fd, off_t byte)
{
    struct flock lock = {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = byte,
        .l_len = 1,
    };

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool share_is_held(const struct machine *machine, int share, bool is_open)
{
    int fd = machine_open_state(machine);
    bool held = fd >= 0 && is_locked(fd, (is_open ? OPEN_OFFSET : HELD_OFFSET) + share);

    if (fd >= 0)
        close(fd);
    return held;
}

const struct machine_share *share_read(const struct machine *machine, int share)
{
    return record_of(machine, share);
}

void share_path(const struct machine *machine, int share, char *path, size_t size)
{
    snprintf(path, size, "%s/shared.%d.%llu", machine->folder, share,
             (unsigned long long) record_of(machine, share)->id);
}

int share_make(struct machine *machine, const struct share_order *order)
{
    struct machine_state *state = machine->state;
    struct machine_share *record;
    uint32_t share = 0;

    machine_lock_slots(machine);
    while (share < state->share_limit && atomic_load(&state->shares[share].state) != SHARE_FREE)
        share++;
    if (share == MACHINE_SHARES ||
        !machine_make_pages(machine, &state->shares[share], sizeof(*record))) {
        machine_unlock_slots(machine);
        return SHARE_NONE;
    }
    record = &state->shares[share];
    record->device = order->device;
    record->slot = order->slot;
    record->kind = order->kind;
    record->size = order->size;
    record->id = ++state->last_share_id;
    atomic_store(&record->bytes, order->bytes);
    if (state->share_limit <= share)
        state->share_limit = share + 1;
    atomic_store(&record->state, SHARE_OWNED);
    machine_unlock_slots(machine);
    return (int) share;
}

void share_resize(struct machine *machine, int share, uint64_t bytes)
{
    atomic_store(&record_of(machine, share)->bytes, bytes);
}

/* state->lock held. */
static void forget(struct machine *machine, int share)
{
    char path[PATH_MAX];

    share_path(machine, share, path, sizeof(path));
    unlink(path);
    atomic_store(&record_of(machine, share)->state, SHARE_FREE);
}

bool share_end(struct machine *machine, int share)
{
    struct machine_share *record = record_of(machine, share);
    bool is_held;

    machine_lock_slots(machine);
    is_held = share_is_held(machine, share, false);
    if (is_held)
        machine_leave(machine, record);
    else
        forget(machine, share);
    machine_unlock_slots(machine);
    return !is_held;
}

/* A second name of the state file, while a buffer is opened: locks belong to the file. */
static void buffer_path(const struct machine *machine, char *path, size_t size)
{
    snprintf(path, size, "%s/dmabuf", machine->folder);
}

void share_orphan(struct machine *machine, uint32_t slot)
{
    char path[MACHINE_PATH + 32];

    buffer_path(machine, path, sizeof(path));
    unlink(path); /* its process may have been killed in share_buffer() */
    for (uint32_t share = 0; share < machine->state->share_limit; share++) {
        struct machine_share *record = &machine->state->shares[share];

        if (atomic_load(&record->state) != SHARE_OWNED || record->slot != slot)
            continue;
        if (share_is_held(machine, (int) share, false))
            atomic_store(&record->state, SHARE_LEFT); /* the slot's bytes go as a whole */
        else
            forget(machine, (int) share);
    }
}

void share_reap(struct machine *machine)
{
    for (uint32_t share = 0; share < machine->state->share_limit; share++) {
        struct machine_share *record = &machine->state->shares[share];

        if (atomic_load(&record->state) != SHARE_LEFT || share_is_held(machine, (int) share, false))
            continue;
        forget(machine, (int) share);
        machine_recount(machine, record->device);
    }
}

uint64_t share_left_bytes(const struct machine *machine, uint32_t device)
{
    uint64_t sum = 0;

    for (uint32_t share = 0; share < machine->state->share_limit; share++) {
        const struct machine_share *record = &machine->state->shares[share];
        if (atomic_load(&record->state) == SHARE_LEFT &&
            machine->config.devices[record->device].account == device)
            sum += atomic_load(&record->bytes);
    }
    return sum;
}

/* --- holders ---------------------------------------------------------------------------------- */

/* The descriptor's file offset says which share it stands for. */
int share_descriptor(const struct machine *machine, int share)
{
    int fd = machine_open_state(machine);

    if (fd < 0)
        return -1;
    if (!lock_byte(fd, HELD_OFFSET + share) ||
        lseek(fd, HELD_OFFSET + share, SEEK_SET) != HELD_OFFSET + share) {
        close(fd);
        return -1;
    }
    return fd;
}

bool share_gave(const struct machine *machine, int descriptor)
{
    struct stat given, state;
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/state", machine->folder);
    return !fstat(descriptor, &given) && !stat(path, &state) && given.st_dev == state.st_dev &&
           given.st_ino == state.st_ino;
}

int share_of_descriptor(const struct machine *machine, int descriptor)
{
    off_t place;

    if (!share_gave(machine, descriptor))
        return SHARE_NONE;
    place = lseek(descriptor, 0, SEEK_CUR) - HELD_OFFSET;
    if (place < 0 || place >= (off_t) machine->state->share_limit ||
        atomic_load(&record_of(machine, (int) place)->state) == SHARE_FREE)
        return SHARE_NONE;
    return (int) place;
}

/* Lock the share on *fd*, unless its place has another share by now, which must not look held even
 * for a moment. */
static bool lock_share(struct machine *machine, int share, uint64_t id, bool is_open, int fd)
{
    const struct machine_share *record = record_of(machine, share);
    bool is_ours;

    machine_lock_slots(machine);
    is_ours = atomic_load(&record->state) != SHARE_FREE && record->id == id &&
              lock_byte(fd, HELD_OFFSET + share) &&
              (!is_open || lock_byte(fd, OPEN_OFFSET + share));
    machine_unlock_slots(machine);
    return is_ours;
}

int share_buffer(struct machine *machine)
{
    char state[MACHINE_PATH + 32], path[MACHINE_PATH + 32];
    int fd = -1;

    snprintf(state, sizeof(state), "%s/state", machine->folder);
    buffer_path(machine, path, sizeof(path));
    machine_lock_slots(machine);
    unlink(path); /* of a process that was killed below */
    if (link(state, path) == 0)
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    unlink(path);
    machine_unlock_slots(machine);
    return fd;
}

bool share_keep(struct machine *machine, int descriptor, int share, uint64_t id)
{
    return lock_share(machine, share, id, false, descriptor);
}

void *share_hold(struct machine *machine, int share, uint64_t id, bool is_open)
{
    void *holder;
    int fd;

    if (share < 0 || share >= (int) machine->state->share_limit)
        return NULL;
    fd = keeper_begin(machine);
    holder = keeper_end(machine, fd, fd >= 0 && lock_share(machine, share, id, is_open, fd));
    if (holder && machine->own)
        atomic_fetch_add(&machine->own->imports, 1);
    return holder;
}

void share_let_go(struct machine *machine, void *holder)
{
    keeper_drop(holder);
    if (machine->own)
        atomic_fetch_sub(&machine->own->imports, 1);
    machine_reap(machine, true);
}
