/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.c -- state file descriptions kept open for their locks; see keeper.h. */
#include "keeper.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEEPER_BYTES = 4096 };

/* Most last as long as the process, so nothing else need remember them. */
struct keeper {
    struct keeper *next;
    bool is_used;
    void *page;
    int fd; /* -1: none */
    dev_t file_device;
    ino_t file_inode;
};

static pthread_mutex_t forks = PTHREAD_MUTEX_INITIALIZER;
static struct keeper *keepers; /* used or not; none is ever freed */

static void before_fork(void)
{
    pthread_mutex_lock(&forks);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&forks);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

int keeper_begin(const struct machine *machine)
{
    pthread_mutex_lock(&forks);
    return machine_open_state(machine);
}

/* If no descriptor is left (EMFILE), the mapping alone keeps the file open. */
static bool keep_open(struct keeper *keeper, int fd)
{
    struct stat status;

    if (fstat(fd, &status))
        return false;
    keeper->file_device = status.st_dev;
    keeper->file_inode = status.st_ino;
    keeper->fd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    return true;
}

/* Forks are held off: one thread at a time. */
static struct keeper *find_unused(void)
{
    struct keeper *keeper = keepers;

    while (keeper && __atomic_load_n(&keeper->is_used, __ATOMIC_ACQUIRE))
        keeper = keeper->next;
    if (!keeper) {
        keeper = calloc(1, sizeof(*keeper));
        if (!keeper)
            return NULL;
        keeper->next = keepers;
        keepers = keeper;
    }
    keeper->is_used = true;
    return keeper;
}

static struct keeper *keep(int fd, bool is_inherited)
{
    struct keeper *keeper = find_unused();

    if (!keeper)
        return NULL;
    keeper->fd = -1;
    keeper->page = mmap(NULL, KEEPER_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (keeper->page != MAP_FAILED) {
        if (is_inherited ? keep_open(keeper, fd)
                         : madvise(keeper->page, KEEPER_BYTES, MADV_DONTFORK) == 0)
            return keeper;
        munmap(keeper->page, KEEPER_BYTES);
    }
    keeper->is_used = false;
    return NULL;
}

struct keeper *keeper_end(const struct machine *machine, int fd, bool is_wanted)
{
    struct keeper *keeper = fd >= 0 && is_wanted ? keep(fd, machine->config.law.fork_keeps) : NULL;

    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&forks);
    return keeper;
}

/* The descriptor may have been closed by a program that closes all there are. */
static bool is_open(const struct keeper *keeper)
{
    struct stat status;

    return keeper->fd >= 0 && fstat(keeper->fd, &status) == 0 &&
           status.st_dev == keeper->file_device && status.st_ino == keeper->file_inode;
}

/* Forked children may share the descriptor; unlocking here unlocks it for them, too. */
void keeper_drop(struct keeper *keeper)
{
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    if (is_open(keeper)) {
        fcntl(keeper->fd, F_OFD_SETLK, &all);
        close(keeper->fd);
    }
    munmap(keeper->page, KEEPER_BYTES);
    __atomic_store_n(&keeper->is_used, false, __ATOMIC_RELEASE);
}
