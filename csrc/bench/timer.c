/* SPDX-License-Identifier: Apache-2.0 */
/* timer.c -- calibrates the clock; see timer.h. */
#include "timer.h"

#include <stdlib.h>

enum { CALIBRATION_NS = 20000000, EMPTY_SAMPLES = 10001 };

static double ns_per_tick = 1;
static uint64_t own_ticks;

static int compare(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *) left;
    uint32_t b = *(const uint32_t *) right;

    return (a > b) - (a < b);
}

void timer_calibrate(void)
{
    static uint32_t empty[EMPTY_SAMPLES];
    uint64_t started = timer_monotonic_ns();
    uint64_t first = timer_begin();
    uint64_t now;

    do
        now = timer_monotonic_ns();
    while (now - started < CALIBRATION_NS);
    ns_per_tick = (double) (now - started) / (double) (timer_end() - first);

    for (int i = 0; i < EMPTY_SAMPLES; i++) {
        uint64_t begin = timer_begin();

        empty[i] = (uint32_t) (timer_end() - begin);
    }
    qsort(empty, EMPTY_SAMPLES, sizeof(*empty), compare);
    own_ticks = empty[EMPTY_SAMPLES / 2];
}

double timer_ns(uint64_t ticks)
{
    return ticks > own_ticks ? (double) (ticks - own_ticks) * ns_per_tick : 0;
}

double timer_own_ns(void)
{
    return (double) own_ticks * ns_per_tick;
}
