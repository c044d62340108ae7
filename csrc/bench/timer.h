/* SPDX-License-Identifier: Apache-2.0 */
/* timer.h -- a clock fine enough for one call: the processor's counter, else clock_gettime.
 *
 * The cost of reading it is measured once and subtracted from every sample. Fences keep the call
 * between the two readings, so a sample is the whole latency of the call, on one processor.
 */
#ifndef PYVGPU_BENCH_TIMER_H
#define PYVGPU_BENCH_TIMER_H

#include <stdint.h>
#include <time.h>

static inline uint64_t timer_monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * UINT64_C(1000000000) + (uint64_t) now.tv_nsec;
}

#if defined(__x86_64__)

static inline uint64_t timer_begin(void)
{
    uint64_t ticks;

    __builtin_ia32_lfence();
    ticks = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    return ticks;
}

static inline uint64_t timer_end(void)
{
    unsigned int processor;
    uint64_t ticks = __builtin_ia32_rdtscp(&processor);

    __builtin_ia32_lfence();
    return ticks;
}

#else

static inline uint64_t timer_begin(void)
{
    return timer_monotonic_ns();
}

static inline uint64_t timer_end(void)
{
    return timer_monotonic_ns();
}

#endif

/* Measure the length of a tick, and the cost of timer_begin and timer_end with nothing between; the
 * latter alone, which changes with the other load of the processor. */
void timer_calibrate(void);
void timer_calibrate_own(void);

/* Convert timer_end() minus timer_begin() to nanoseconds, less the timer's own cost. */
double timer_ns(double ticks);

/* The timer's own cost. */
double timer_own_ns(void);

#endif
