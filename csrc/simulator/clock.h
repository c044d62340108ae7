/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h -- the one clock of the simulated machine, the same for all of its processes. */
#ifndef PYVGPU_SIMULATOR_CLOCK_H
#define PYVGPU_SIMULATOR_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t) now.tv_sec * UINT64_C(1000000000) + (uint64_t) now.tv_nsec;
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t clock_now(void)
{
    return clock_read(CLOCK_MONOTONIC);
}

/* The same to a few milliseconds, and cheaper. */
static inline uint64_t clock_coarse(void)
{
    return clock_read(CLOCK_MONOTONIC_COARSE);
}

/* Sleep until then, accurate to about 50 us; returns early on a signal. */
void clock_sleep_until(uint64_t then);

#endif
