/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.c -- forks before any library is loaded, and releases all at once; see crowd.h. */
#include "crowd.h"
#include "timer.h"

#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { PATIENCE_NS_LOG = 36, LOOK_US = 1000 }; /* a minute, about */

struct stage {
    uint32_t ready;
    uint32_t done;
    uint32_t released;
    uint32_t ended;
    uint64_t released_ns;
};

static void wait_for(uint32_t *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, flag, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void raise_flag(uint32_t *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, flag, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void play(struct stage *stage, unsigned index, const struct crowd_role *role)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    role->prepare(index);
    __atomic_add_fetch(&stage->ready, 1, __ATOMIC_RELEASE);
    wait_for(&stage->released);
    role->act(index, stage->released_ns);
    __atomic_add_fetch(&stage->done, 1, __ATOMIC_RELEASE);
    while (role->go_on && !__atomic_load_n(&stage->ended, __ATOMIC_ACQUIRE))
        role->go_on();
    wait_for(&stage->ended);
    exit(0);
}

static void fail(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

/* Sleep until *counter* is at *count*; a process that ends before it has failed. */
static void await(const uint32_t *counter, unsigned count)
{
    uint64_t started = timer_monotonic_ns();

    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < count) {
        if (waitpid(-1, NULL, WNOHANG) > 0)
            fail("a process of the crowd has failed");
        if ((timer_monotonic_ns() - started) >> PATIENCE_NS_LOG)
            fail("the crowd takes longer than a minute");
        usleep(LOOK_US);
    }
}

void crowd_run(unsigned count, const struct crowd_role *role)
{
    struct stage *stage =
        mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (stage == MAP_FAILED)
        fail("no memory for the crowd");
    fflush(stdout);
    for (unsigned index = 0; index < count; index++) {
        pid_t child = fork();

        if (child < 0)
            fail("cannot fork");
        if (child == 0)
            play(stage, index, role);
    }
    await(&stage->ready, count);
    stage->released_ns = timer_monotonic_ns();
    raise_flag(&stage->released);
    await(&stage->done, count);
    raise_flag(&stage->ended);
    for (unsigned index = 0; index < count; index++) {
        int status;

        if (wait(&status) < 0 || status != 0)
            fail("a process of the crowd has failed");
    }
}
