/* SPDX-License-Identifier: Apache-2.0 */
/* victim.h -- a process that is single-stepped through a section and killed at a given instruction.
 */
#ifndef PYVGPU_TESTS_VICTIM_H
#define PYVGPU_TESTS_VICTIM_H

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct victim {
    pid_t pid;
    int status;
};

/* In the victim: before it prepares itself, and before and after the section. The bare system call
 * keeps the library out of what is stepped through. */
static inline void victim_is_traced(void)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static inline void victim_stops(void)
{
    syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
}

/* Wait until it has stopped before the section; 0 if it ended instead. */
static inline int victim_stands(struct victim *victim)
{
    waitpid(victim->pid, &victim->status, 0);
    return WIFSTOPPED(victim->status);
}

/* Execute *steps* instructions; 0 once it has left the section. */
static inline int victim_step(struct victim *victim, unsigned steps)
{
    for (unsigned i = 0; i < steps && WIFSTOPPED(victim->status); i++) {
        if (ptrace(PTRACE_SINGLESTEP, victim->pid, NULL, NULL) != 0)
            return 0;
        waitpid(victim->pid, &victim->status, 0);
        if (WIFSTOPPED(victim->status) && WSTOPSIG(victim->status) == SIGSTOP)
            return 0;
    }
    return WIFSTOPPED(victim->status);
}

/* Let it run through the rest of the section. */
static inline void victim_finish(struct victim *victim)
{
    if (ptrace(PTRACE_CONT, victim->pid, NULL, NULL) == 0)
        waitpid(victim->pid, &victim->status, 0);
}

static inline void victim_kill(struct victim *victim)
{
    kill(victim->pid, SIGKILL);
    while (!WIFSIGNALED(victim->status) && !WIFEXITED(victim->status))
        if (waitpid(victim->pid, &victim->status, 0) < 0)
            break;
}

/* A section of thousands of instructions is not tested at each of them, since each time all earlier
 * ones are stepped through again, but at every stride-th, with a different offset in each run. So
 * as many seeds as the stride has instructions hit every boundary. CHECK_SEED repeats a run.
 */
static inline unsigned sample_seed(void)
{
    const char *given = getenv("CHECK_SEED");
    unsigned seed = given ? (unsigned) strtoul(given, NULL, 10) : (unsigned) time(NULL);

    printf("where sections are sampled: CHECK_SEED=%u\n", seed);
    return seed;
}

/* A step takes two context switches with the victim: far cheaper on one processor. */
static inline void stay_on_one_processor(void)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
}

#endif
