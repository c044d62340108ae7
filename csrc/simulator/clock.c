/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c -- sleeping until a moment of the machine's clock. */
#include "clock.h"

void clock_sleep_until(uint64_t then)
{
    struct timespec moment = {
        .tv_sec = (time_t) (then / UINT64_C(1000000000)),
        .tv_nsec = (long) (then % UINT64_C(1000000000)),
    };

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL);
}
