/* SPDX-License-Identifier: Apache-2.0 */
/* wakes.c -- `wakes NS` wakes every NS nanoseconds and does nothing else.
 *
 * Its CPU time is the minimum for any process that polls at that rate; benchmarks/arbiter.py shows
 * it beside the arbiter.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum { LEAST_NS = 100000 };

int main(int argc, char **argv)
{
    uint64_t every = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    struct timespec next;

    if (every < LEAST_NS) {
        fprintf(stderr, "usage: wakes NS, at least %d, such as wakes 20000000\n", LEAST_NS);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, -10); /* like the arbiter */
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        uint64_t then = (uint64_t) next.tv_nsec + every;

        next.tv_sec += (time_t) (then / UINT64_C(1000000000));
        next.tv_nsec = (long) (then % UINT64_C(1000000000));
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
}
