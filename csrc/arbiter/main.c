/* SPDX-License-Identifier: Apache-2.0 */
/* main.c -- pyvgpu-arbiter [--foreground] [--nvml LIBRARY] FOLDER REGISTRY REGISTRY
 *
 * Keeps the clocks of all devices in FOLDER for the runs in the two registries, root's and the one
 * for all users: see arbiter.h. By default it daemonizes and ends with the last run that uses its
 * clocks; in the foreground it also stays while its parent lives. When it daemonizes, the calling
 * process exits once an arbiter has FOLDER, this one or another, or this one has failed. The reason
 * goes to standard error; none is printed if this one was killed, since the next may live.
 */
#include "arbiter/arbiter.h"
#include "arbiter/detach.h"
#include "arbiter/outside.h"
#include "core/compiler.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void) number;
    ended = 1;
}

/* Each run takes two descriptors. */
static void allow_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static struct arbiter arbiter;
    int stay = argc > 1 && strcmp(argv[1], "--foreground") == 0;
    const char *libnvidia_ml =
        argc > 2 + stay && strcmp(argv[1 + stay], "--nvml") == 0 ? argv[2 + stay] : NULL;
    char **places = argv + 1 + stay + (libnvidia_ml ? 2 : 0);
    pid_t keeper = stay ? getppid() : 0;
    const char *failure;
    int report = STDERR_FILENO;

    if (argc - (places - argv) != 1 + REGISTRIES) {
        fprintf(stderr,
                "usage: pyvgpu-arbiter [--foreground] [--nvml LIBRARY] FOLDER REGISTRY REGISTRY\n");
        return 64;
    }
    if (!stay && (report = detach()) < 0) {
        perror("pyvgpu-arbiter");
        return 1;
    }
    prctl(PR_SET_NAME, "pyvgpu-arbiter", 0, 0, 0);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    allow_descriptors();
    /* Its clocks should not wait for the programs whose time it divides. Works for root alone. */
    setpriority(PRIO_PROCESS, 0, -10);
    for (unsigned i = 0; i < REGISTRIES; i++)
        arbiter.registries.paths[i] = places[1 + i];
    failure = arbiter_take(&arbiter, places[0]);
    if (failure && stay)
        fprintf(stderr, "%s: %s\n", places[0], failure);
    if (!stay)
        detach_report(report, failure == arbiter_other ? NULL : failure);
    if (failure)
        return 1;
    if (libnvidia_ml)
        outside_start(libnvidia_ml);
    arbiter_keep(&arbiter, keeper, &ended);
    arbiter_leave(&arbiter);
    return 0;
}
