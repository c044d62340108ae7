/* SPDX-License-Identifier: Apache-2.0 */
/* call.h -- latency of single driver calls, each timed by itself.
 *
 * p50 is the median of calls; events every few milliseconds (an interrupt, the reaping of dead
 * processes) show up in p99 and max.
 *
 * A call is timed in one phase, or in one phase per input line: a comparison of two programs
 * alternates between them, so that changes on the machine affect both alike.
 */
#ifndef PYVGPU_BENCH_CALL_H
#define PYVGPU_BENCH_CALL_H

#include "library.h"
#include "samples.h"
#include "timer.h"

enum { CROWD = 8, WARM_UP = 2000, WARM_UP_AGAIN = 200 };

struct call {
    const char *name;
    void (*prepare)(void);  /* in each process: opens the driver */
    void (*begin)(void);    /* then in each thread that makes the call; or NULL */
    uint64_t (*time)(void); /* makes the call once; returns ticks of timer.h */
    size_t count;           /* samples in a phase, by default */
    unsigned processes;     /* number that make it concurrently; 0: only this process */
    unsigned threads;       /* number that make it concurrently; 0: only this thread */
    int first_alone;        /* only the first process makes it, the others exist */
};

/* Take *count* samples and print their summary line: once, or for each line of standard input. */
void call_measure(const struct call *call, size_t count, int by_lines);

/* Open the driver, with a context on the first device. */
void call_open(void);

#endif
