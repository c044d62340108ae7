/* SPDX-License-Identifier: Apache-2.0 */
/* owner.c -- pid of a slot's process, translated to the PID namespace of the calling process.
 *
 * A process knows its pid in its own PID namespace alone, but NVML on a node reports the node's
 * pids, those of containers, too. The kernel translates: F_GETLK reports the holder of a POSIX lock
 * in the caller's namespace. So each process locks the byte of its slot in a separate file. Any
 * close() of that file would drop the lock, so nothing here closes it.
 */
#include "machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct owners_file {
    int fd;
    dev_t device;
    ino_t inode;
};

static struct owners_file owners = {.fd = -1};
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* The program may have closed the descriptor, and opened another file by that number. */
static bool is_open(void)
{
    struct stat status;

    return owners.fd >= 0 && fstat(owners.fd, &status) == 0 && status.st_dev == owners.device &&
           status.st_ino == owners.inode;
}

/* The descriptor, opened by the first call, or -1. */
static int open_owners(const struct machine *machine)
{
    char path[MACHINE_PATH + 32];
    struct stat status;
    int fd;

    pthread_mutex_lock(&opening);
    if (!is_open()) {
        snprintf(path, sizeof(path), "%s/owners", machine->folder);
        owners.fd = -1;
        fd = machine_open_file(path, O_RDWR);
        if (fd >= 0 && fstat(fd, &status) == 0)
            owners = (struct owners_file) {fd, status.st_dev, status.st_ino};
    }
    fd = owners.fd;
    pthread_mutex_unlock(&opening);
    return fd;
}

static struct flock owner_lock(uint32_t slot)
{
    return (struct flock) {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = slot,
        .l_len = 1,
    };
}

void machine_name_owner(const struct machine *machine, uint32_t slot)
{
    int fd = open_owners(machine);
    struct flock lock = owner_lock(slot);

    if (fd >= 0)
        fcntl(fd, F_SETLK, &lock);
}

uint32_t machine_owner(const struct machine *machine, uint32_t slot)
{
    const struct machine_slot *record = &machine->state->slots[slot];
    int fd = open_owners(machine);
    struct flock lock = owner_lock(slot);

    if (fd < 0 || fcntl(fd, F_GETLK, &lock))
        return record->pid;
    if (lock.l_type == F_UNLCK) /* this process, or none */
        return record->pid_namespace == machine_pid_namespace() ? record->pid : 0;
    return lock.l_pid > 0 ? (uint32_t) lock.l_pid : record->pid; /* 0: it has no number here */
}
