/* SPDX-License-Identifier: Apache-2.0 */
/* main.c -- load FIGURE [COUNT]: measure one thing about the driver that libcuda.so.1 leads to.
 *
 * A program like any other on cuda.h and nvml.h. It does not know whether it meets the driver
 * itself or something in front of it; benchmarks/run.py runs it both ways and compares.
 */
#include "figures.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const struct figure {
    const char *name;
    void (*measure)(size_t count);
    size_t count; /* samples unless told; for footprint the allocations that live */
    int crowded;  /* more processes than processors */
} figures[] = {
    {"pair", figure_pair, 50000, 0},
    {"pair-live", figure_pair_live, 50000, 0},
    {"pair-any", figure_pair_any, 50000, 0},
    {"pair-crowd", figure_pair_crowd, 400000, 1},
    {"pair-async", figure_pair_async, 50000, 0},
    {"mapping", figure_mapping, 50000, 0},
    {"refusal", figure_refusal, 50000, 0},
    {"memory-info", figure_memory_info, 50000, 0},
    {"nvml-memory", figure_nvml_memory, 50000, 0},
    {"process-list", figure_process_list, 50000, 1},
    {"lookup", figure_lookup, 40000, 0},
    {"launch", figure_launch, 50000, 0},
    {"launch-threads", figure_launch_threads, 160000, 1},
    {"untouched", figure_untouched, 50000, 0},
    {"elsewhere", figure_elsewhere, 0, 0},
    {"start", figure_start, 60, 0},
    {"init-crowd", figure_init_crowd, 256, 1},
    {"footprint", figure_footprint, 10000, 0},
    {"total", figure_total, 0, 0},
};

enum { FIGURES = sizeof(figures) / sizeof(figures[0]), MOST_SAMPLES = 10000000 };

static int show_usage(void)
{
    fprintf(stderr, "usage: load FIGURE [COUNT], such as load pair 100000; the figures are");
    for (size_t i = 0; i < FIGURES; i++)
        fprintf(stderr, " %s", figures[i].name);
    fputc('\n', stderr);
    return 2;
}

/* Measure the calls and not what else the machine does: in real time where that is allowed. A crowd
 * must share the processors with each other as it would, so it only goes before the rest. */
static void take_precedence(int crowded)
{
    struct sched_param lowest = {.sched_priority = 1};

    if (crowded ? setpriority(PRIO_PROCESS, 0, -15) : sched_setscheduler(0, SCHED_FIFO, &lowest))
        errno = 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "start-child") == 0)
        return start_child(argv[2], argv[3]);
    for (size_t i = 0; i < FIGURES && argc > 1 && argc < 4; i++) {
        size_t count = figures[i].count;
        char *end = "";

        if (strcmp(argv[1], figures[i].name) != 0)
            continue;
        if (argc == 3)
            count = strtoull(argv[2], &end, 10);
        if (*end != '\0' || (argc == 3 && count < 8) || count > MOST_SAMPLES)
            break;
        take_precedence(figures[i].crowded);
        figures[i].measure(count);
        return 0;
    }
    return show_usage();
}
