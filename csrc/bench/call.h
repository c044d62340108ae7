/* SPDX-License-Identifier: Apache-2.0 */
/* call.h -- single calls of a running program, each timed by itself.
 *
 * p50 is the median of calls, and what happens every few milliseconds (an interrupt, a look for
 * dead processes) is in p99 and max.
 *
 * A call is timed in one phase, or in as many as lines are read: whoever compares two programs lets
 * them take turns, so that what changes on the machine meets both alike.
 */
#ifndef PYVGPU_BENCH_CALL_H
#define PYVGPU_BENCH_CALL_H

#include "library.h"
#include "samples.h"
#include "timer.h"

enum { CROWD = 8, WARM_UP = 2000, WARM_UP_AGAIN = 200 };

struct call {
    const char *name;
    void (*prepare)(void);  /* in each process: the driver is opened */
    void (*begin)(void);    /* and then in each thread that makes the call; or NULL */
    uint64_t (*time)(void); /* make it once: ticks of timer.h */
    size_t count;           /* of samples in a phase, unless told */
    unsigned processes;     /* that make it at the same time; 0: this one */
    unsigned threads;       /* of this process; 0: this one */
    int first_alone;        /* of the processes only the first makes it, and the others are there */
};

/* Take *count* samples and print the line about them: once, or each time that a line comes in. */
void call_measure(const struct call *call, size_t count, int by_lines);

/* Open the driver, with a context on the first device. */
void call_open(void);

#endif
