/* SPDX-License-Identifier: Apache-2.0 */
/* lock.c -- the machine's locks, which survive the death or SIGSTOP of a holder.
 *
 * Code under these locks stands for driver code in the kernel, where a process cannot be stopped:
 * a holder that was sent SIGSTOP is continued as soon as another process wants the lock.
 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "machine.h"

#define TIMEOUT_NS 20000000

char machine_thread_state(int thread)
{
    char path[64], line[512];
    const char *name_end = NULL;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", thread);
    file = fopen(path, "re");
    if (file && fgets(line, sizeof(line), file))
        name_end = strrchr(line, ')'); /* the name may have anything in it */
    if (file)
        fclose(file);
    return name_end && name_end[1] ? name_end[2] : '\0';
}

/* A holder in another PID namespace: here its number may be that of an unrelated process. */
static bool is_on_a_machine(int thread)
{
    char path[64], line[MACHINE_PATH + 128];
    bool found = false;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/maps", thread);
    file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        const char *name = strrchr(line, '/');
        found = name && !strcmp(name, "/state\n");
    }
    if (file)
        fclose(file);
    return found;
}

static void let_holder_go_on(const pthread_mutex_t *lock)
{
    int thread = __atomic_load_n(&lock->__data.__lock, __ATOMIC_RELAXED) & FUTEX_TID_MASK;

    if (thread && machine_thread_state(thread) == 'T' && is_on_a_machine(thread))
        kill(thread, SIGCONT);
}

static int lock_for_a_while(pthread_mutex_t *lock)
{
    uint64_t until = clock_read(CLOCK_REALTIME) + TIMEOUT_NS;
    struct timespec deadline = {
        .tv_sec = (time_t) (until / UINT64_C(1000000000)),
        .tv_nsec = (long) (until % UINT64_C(1000000000)),
    };

    return pthread_mutex_timedlock(lock, &deadline);
}

bool machine_lock(pthread_mutex_t *lock)
{
    int result = pthread_mutex_trylock(lock);

    if (result == EBUSY)
        while ((result = lock_for_a_while(lock)) == ETIMEDOUT)
            let_holder_go_on(lock);
    return result == EOWNERDEAD && pthread_mutex_consistent(lock) == 0;
}
