/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.c -- files that are open by a mapping alone; see keeper.h. */
#include "keeper.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEEPER_BYTES = 4096 };

static pthread_mutex_t forks = PTHREAD_MUTEX_INITIALIZER;

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

static void *keep(int fd, bool is_inherited)
{
    void *keeper = mmap(NULL, KEEPER_BYTES, PROT_READ, MAP_SHARED, fd, 0);

    if (keeper == MAP_FAILED)
        return NULL;
    if (is_inherited || madvise(keeper, KEEPER_BYTES, MADV_DONTFORK) == 0)
        return keeper;
    munmap(keeper, KEEPER_BYTES);
    return NULL;
}

void *keeper_end(const struct machine *machine, int fd, bool is_wanted)
{
    void *keeper = fd >= 0 && is_wanted ? keep(fd, machine->config.law.fork_keeps) : NULL;

    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&forks);
    return keeper;
}

void keeper_drop(void *keeper)
{
    munmap(keeper, KEEPER_BYTES);
}
