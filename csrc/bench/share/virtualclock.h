/* SPDX-License-Identifier: Apache-2.0 */
/* virtualclock.h -- the file by which the threads of a benchmark share one clock that no other load
 * on the computer disturbs; benchmarks/stage.py makes it, turns.h says how it goes. */
#ifndef PYVGPU_BENCH_VIRTUALCLOCK_H
#define PYVGPU_BENCH_VIRTUALCLOCK_H

#include <stdint.h>

#define VIRTUALCLOCK_VARIABLE "SHARE_CLOCK" /* the environment's name for the file's path */

enum { VIRTUALCLOCK_THREADS = 128 };

enum virtualclock_mode {
    VIRTUALCLOCK_REAL,   /* as without it */
    VIRTUALCLOCK_GATHER, /* whoever reads the clock or sleeps waits for the rest */
    VIRTUALCLOCK_GOES,
};

enum virtualclock_state { VIRTUALCLOCK_RUNS, VIRTUALCLOCK_WAITS, VIRTUALCLOCK_AWAY };

struct virtualclock_thread {
    uint32_t thread; /* 0: nobody's */
    uint32_t process;
    uint32_t state;
    uint32_t wakes;
    uint64_t at_ns;     /* it has come that far; while it sleeps: when it will wake */
    uint64_t waits_for; /* what another thread of its process calls; 0: it does not */
    uint64_t unused[4];
};

/* The library has this one call of its own, for programs that look for it by name: the calling
 * thread computes until then, ns of CLOCK_MONOTONIC. No timer is late in it. */
typedef void virtualclock_compute_until_call(uint64_t then_ns);

struct virtualclock {
    uint32_t mode;
    uint32_t forced;      /* how often somebody went on although another one was behind */
    uint64_t frontier_ns; /* how far anybody has come */
    int64_t leap_ns;      /* CLOCK_MONOTONIC went forward at once by so much */
    int64_t step_ns;      /* CLOCK_REALTIME was set by so much */
    uint64_t unused[4];
    struct virtualclock_thread threads[VIRTUALCLOCK_THREADS];
};

#endif
