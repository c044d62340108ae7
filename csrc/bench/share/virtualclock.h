/* SPDX-License-Identifier: Apache-2.0 */
/* virtualclock.h -- the file with the virtual clock of a benchmark's threads, which other load on
 * the computer does not disturb; benchmarks/scene_runs.py creates it, turns.h explains it. */
#ifndef PYVGPU_BENCH_SHARE_VIRTUALCLOCK_H
#define PYVGPU_BENCH_SHARE_VIRTUALCLOCK_H

#include <stdint.h>

#define VIRTUALCLOCK_VARIABLE "SHARE_CLOCK" /* environment variable with the file's path */

enum { VIRTUALCLOCK_THREADS = 128 };

enum virtualclock_mode {
    VIRTUALCLOCK_REAL,   /* real time */
    VIRTUALCLOCK_GATHER, /* a thread that reads the clock or sleeps waits for the rest */
    VIRTUALCLOCK_GOES,
};

enum virtualclock_state { VIRTUALCLOCK_RUNS, VIRTUALCLOCK_WAITS, VIRTUALCLOCK_AWAY };

struct virtualclock_thread {
    uint32_t thread; /* 0: unused */
    uint32_t process;
    uint32_t state;
    uint32_t wakes;
    uint64_t at_ns;     /* its time; while it sleeps, when it will wake */
    uint64_t waits_for; /* the call by another thread that it waits for; 0: none */
    uint64_t unused[4];
};

/* The library's own call, which programs look up by name: the calling thread computes until then,
 * ns of CLOCK_MONOTONIC, without timer latency. */
typedef void virtualclock_compute_until_call(uint64_t then_ns);

struct virtualclock {
    uint32_t mode;
    uint32_t forced;      /* how often a thread went on although another one was behind */
    uint64_t frontier_ns; /* the latest time that any thread has reached */
    int64_t leap_ns;      /* CLOCK_MONOTONIC jumped forward by so much */
    int64_t step_ns;      /* CLOCK_REALTIME was set by so much */
    uint64_t unused[4];
    struct virtualclock_thread threads[VIRTUALCLOCK_THREADS];
};

#endif
