/* SPDX-License-Identifier: Apache-2.0 */
/* timer.c -- calibrates the clock; see timer.h. */
#include "timer.h"
#include "samples.h"

enum { CALIBRATION_NS = 20000000, EMPTY_SAMPLES = 2001 };

static double ns_per_tick = 1;
static double own_ticks;

void timer_calibrate(void)
{
    uint64_t started = timer_monotonic_ns();
    uint64_t first = timer_begin();
    uint64_t now;

    do
        now = timer_monotonic_ns();
    while (now - started < CALIBRATION_NS);
    ns_per_tick = (double) (now - started) / (double) (timer_end() - first);
    timer_calibrate_own();
}

void timer_calibrate_own(void)
{
    static uint64_t empty[EMPTY_SAMPLES];

    for (int i = 0; i < EMPTY_SAMPLES; i++) {
        uint64_t begin = timer_begin();

        empty[i] = timer_end() - begin;
    }
    samples_sort(empty, EMPTY_SAMPLES);
    own_ticks = samples_at(empty, EMPTY_SAMPLES, 0.5);
}

double timer_ns(double ticks)
{
    return ticks > own_ticks ? (ticks - own_ticks) * ns_per_tick : 0;
}

double timer_own_ns(void)
{
    return own_ticks * ns_per_tick;
}
