/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.c -- starts concurrent members and releases them together; see crowd.h. */
#include "crowd.h"
#include "timer.h"

#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_NS_LOG = 36, POLL_US = 1000 }; /* a minute, about */

#define ENDED UINT32_MAX /* instead of a round: the crowd ends */

struct crowd {
    const struct crowd_role *role;
    enum crowd_kind kind;
    unsigned count;
    uint32_t round; /* the last one released */
    uint32_t over;  /* the last one in which all members have acted */
    uint32_t ready; /* members that wait for the next round */
    uint32_t acted;
    uint64_t released_ns;
    struct member {
        struct crowd *crowd;
        unsigned index;
        pthread_t thread;
    } members[];
};

static void fail(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static uint32_t next_round(struct crowd *crowd, uint32_t before)
{
    uint32_t round;

    __atomic_add_fetch(&crowd->ready, 1, __ATOMIC_RELEASE);
    while ((round = __atomic_load_n(&crowd->round, __ATOMIC_ACQUIRE)) == before)
        syscall(SYS_futex, &crowd->round, FUTEX_WAIT, before, NULL, NULL, 0);
    return round;
}

static void *play(void *argument)
{
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    uint32_t round = 0;

    crowd->role->prepare(member->index);
    while ((round = next_round(crowd, round)) != ENDED) {
        crowd->role->act(member->index, crowd->released_ns);
        __atomic_add_fetch(&crowd->acted, 1, __ATOMIC_RELEASE);
        while (crowd->role->go_on && __atomic_load_n(&crowd->over, __ATOMIC_ACQUIRE) != round)
            crowd->role->go_on();
    }
    return NULL;
}

static void start(struct member *member)
{
    pid_t child;

    if (member->crowd->kind == CROWD_THREADS) {
        if (pthread_create(&member->thread, NULL, play, member) != 0)
            fail("no thread for the crowd");
        return;
    }
    child = fork();
    if (child < 0)
        fail("cannot fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        play(member);
        exit(0);
    }
}

/* Sleep until *counter* reaches the number of members; a process that ends earlier has failed. */
static void await_all(const struct crowd *crowd, const uint32_t *counter)
{
    uint64_t started = timer_monotonic_ns();

    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < crowd->count) {
        if (crowd->kind == CROWD_PROCESSES && waitpid(-1, NULL, WNOHANG) > 0)
            fail("a process of the crowd has failed");
        if ((timer_monotonic_ns() - started) >> TIMEOUT_NS_LOG)
            fail("the crowd takes longer than a minute");
        usleep(POLL_US);
    }
}

struct crowd *crowd_start(enum crowd_kind kind, unsigned count, const struct crowd_role *role)
{
    struct crowd *crowd = mmap(NULL, sizeof(*crowd) + count * sizeof(struct member),
                               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (crowd == MAP_FAILED)
        fail("no memory for the crowd");
    *crowd = (struct crowd) {.role = role, .kind = kind, .count = count};
    fflush(stdout);
    for (unsigned index = 0; index < count; index++) {
        crowd->members[index] = (struct member) {.crowd = crowd, .index = index};
        start(&crowd->members[index]);
    }
    await_all(crowd, &crowd->ready);
    return crowd;
}

static void release(struct crowd *crowd, uint32_t round)
{
    crowd->ready = crowd->acted = 0;
    crowd->released_ns = timer_monotonic_ns();
    __atomic_store_n(&crowd->round, round, __ATOMIC_RELEASE);
    syscall(SYS_futex, &crowd->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void crowd_act(struct crowd *crowd)
{
    uint32_t round = crowd->round + 1;

    release(crowd, round);
    await_all(crowd, &crowd->acted);
    __atomic_store_n(&crowd->over, round, __ATOMIC_RELEASE);
    await_all(crowd, &crowd->ready);
}

void crowd_end(struct crowd *crowd)
{
    release(crowd, ENDED);
    for (unsigned index = 0; index < crowd->count; index++) {
        int status = 0;

        if (crowd->kind == CROWD_THREADS)
            pthread_join(crowd->members[index].thread, NULL);
        else if (wait(&status) < 0 || status != 0)
            fail("a process of the crowd has failed");
    }
}
