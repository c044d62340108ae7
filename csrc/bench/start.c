/* SPDX-License-Identifier: Apache-2.0 */
/* start.c -- start-up time of a program until its first context, alone and in a crowd. */
#include "crowd.h"
#include "figures.h"
#include "library.h"
#include "samples.h"
#include "timer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* In the forked child: note the time and exec this program again. */
static void exec_child(int pipe)
{
    char descriptor[16];
    char began[32];
    char *arguments[] = {"load", "start-child", descriptor, began, NULL};

    snprintf(descriptor, sizeof(descriptor), "%d", pipe);
    snprintf(began, sizeof(began), "%" PRIu64, timer_monotonic_ns());
    execv("/proc/self/exe", arguments);
    _exit(127);
}

int start_child(const char *pipe, const char *began)
{
    uint64_t elapsed;

    library_open_cuda();
    library_make_context();
    elapsed = timer_monotonic_ns() - strtoull(began, NULL, 10);
    return write(atoi(pipe), &elapsed, sizeof(elapsed)) == sizeof(elapsed) ? 0 : 1;
}

static uint64_t time_start(void)
{
    uint64_t elapsed;
    int ends[2];
    int status;
    pid_t child = -1;

    if (pipe(ends) != 0 || (child = fork()) < 0)
        fail("load: no child");
    if (child == 0)
        exec_child(ends[1]);
    close(ends[1]);
    if (read(ends[0], &elapsed, sizeof(elapsed)) != sizeof(elapsed) ||
        waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "load: the started program has failed\n");
        exit(1);
    }
    close(ends[0]);
    return elapsed;
}

void start_figure(size_t count)
{
    struct samples samples = samples_make(count);

    time_start();
    for (size_t i = 0; i < count; i++)
        samples.values[i] = time_start();
    samples_report_ns("start", &samples);
}

static struct samples crowd_samples;

static void prepare_init(unsigned index)
{
    (void) index;
    library_open_cuda();
}

static void act_init(unsigned index, uint64_t released_ns)
{
    library_check("cuInit", CALL(cuInit)(0));
    crowd_samples.values[index] = timer_monotonic_ns() - released_ns;
}

void start_figure_init_crowd(size_t count)
{
    static const struct crowd_role role = {prepare_init, act_init, NULL};
    struct crowd *crowd;

    crowd_samples = samples_make(count);
    crowd = crowd_start(CROWD_PROCESSES, (unsigned) count, &role);
    crowd_act(crowd);
    crowd_end(crowd);
    samples_report_ns("init-crowd", &crowd_samples);
}
