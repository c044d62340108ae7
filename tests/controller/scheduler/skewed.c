/* SPDX-License-Identifier: Apache-2.0 */
/* Clock functions that are off by SKEW_SECONDS, for LD_PRELOAD. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int answer = (int) syscall(SYS_clock_gettime, clock, now);
    if (!answer && clock == CLOCK_REALTIME)
        now->tv_sec += atol(getenv("SKEW_SECONDS"));
    return answer;
}

time_t time(time_t *kept)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void) zone;
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    *now = (struct timeval) {.tv_sec = found.tv_sec, .tv_usec = found.tv_nsec / 1000};
    return 0;
}
