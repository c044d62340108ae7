/* SPDX-License-Identifier: Apache-2.0 */
/* main.c -- load generator: `load FIGURE [COUNT] [by-lines]` takes one measurement of the driver
 * behind libcuda.so.1.
 *
 * An ordinary program on cuda.h and nvml.h. It does not know whether it runs on the driver itself
 * or on a shim in front of it; benchmarks/run.py runs it both ways and compares. With by-lines,
 * it repeats the measurement of a single call for each line of standard input.
 */
#include "figures.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { THREADS = 16, MOST_SAMPLES = 10000000 };

static const struct call calls[] = {
    {"pair", call_open, .time = calls_time_pair, .count = 50000},
    {"pair-live", calls_prepare_live, .time = calls_time_pair, .count = 50000},
    {"pair-any", calls_prepare_live, .time = calls_time_replacement, .count = 50000},
    {"pair-crowd", call_open, .time = calls_time_pair, .count = 400000, .processes = CROWD},
    {"pair-async", call_open, .time = calls_time_async_pair, .count = 50000},
    {"pool-quarter", pools_prepare_full, .time = pools_time_quarter, .count = 2000},
    {"pool-written", pools_prepare_full, .time = pools_time_quarter_written, .count = 200},
    {"mapping", calls_prepare_mapping, .time = calls_time_mapping, .count = 50000},
    {"refusal", calls_prepare_refusal, .time = calls_time_refusal, .count = 50000},
    {"memory-info", queries_prepare_memory_info, .time = queries_time_memory_info, .count = 50000},
    {"nvml-memory", queries_prepare_nvml, .time = queries_time_nvml_memory, .count = 50000},
    {"process-list", queries_prepare_process_list, .time = queries_time_process_list,
     .count = 50000, .processes = CROWD, .first_alone = 1},
    {"lookup", call_open, .time = queries_time_lookup, .count = 40000},
    {"launch", launches_prepare, launches_begin, launches_time, .count = 50000},
    {"launch-threads", launches_prepare, launches_begin, launches_time, .count = 160000,
     .threads = THREADS},
    {"untouched", call_open, .time = untouched_time, .count = 50000},
};

static const struct figure {
    const char *name;
    void (*measure)(size_t count);
    size_t count; /* default number of samples; for footprint, live allocations */
    int crowded;  /* more processes than processors */
} figures[] = {
    {"elsewhere", untouched_elsewhere, 0, 0},
    {"start", start_figure, 60, 0},
    {"init-crowd", start_figure_init_crowd, 256, 1},
    {"footprint", footprint_figure, 10000, 0},
    {"total", footprint_total, 0, 0},
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int show_usage(void)
{
    fprintf(stderr, "usage: load FIGURE [COUNT] [by-lines], such as load pair 100000; the figures "
                    "are");
    for (size_t i = 0; i < LENGTH(calls); i++)
        fprintf(stderr, " %s", calls[i].name);
    for (size_t i = 0; i < LENGTH(figures); i++)
        fprintf(stderr, " %s", figures[i].name);
    fputc('\n', stderr);
    return 2;
}

/* Reduce the influence of other load: run with real-time priority where that is allowed. Crowd
 * members must share the processors among themselves as usual, so they only get a lower nice value.
 */
static void take_precedence(int crowded)
{
    struct sched_param lowest = {.sched_priority = 1};

    if (crowded ? setpriority(PRIO_PROCESS, 0, -15) : sched_setscheduler(0, SCHED_FIFO, &lowest))
        errno = 0;
}

/* Parse the text, or use *usual* if there is none; 0 if it is no number of samples. */
static int read_count(const char *text, size_t usual, size_t *count)
{
    char *end = "";

    *count = text ? strtoull(text, &end, 10) : usual;
    return *end == '\0' && (!text || *count >= 8) && *count <= MOST_SAMPLES;
}

int main(int argc, char **argv)
{
    const char *text = argc > 2 ? argv[2] : NULL;
    int by_lines = argc == 4 && strcmp(argv[3], "by-lines") == 0;
    size_t count;

    if (argc == 4 && strcmp(argv[1], "start-child") == 0)
        return start_child(argv[2], argv[3]);
    for (size_t i = 0; i < LENGTH(calls) && argc > 1 && argc < 4 + by_lines; i++) {
        if (strcmp(argv[1], calls[i].name) != 0 || !read_count(text, calls[i].count, &count))
            continue;
        take_precedence(calls[i].processes || calls[i].threads);
        call_measure(&calls[i], count, by_lines);
        return 0;
    }
    for (size_t i = 0; i < LENGTH(figures) && argc > 1 && argc < 4; i++) {
        if (strcmp(argv[1], figures[i].name) != 0 || !read_count(text, figures[i].count, &count))
            continue;
        take_precedence(figures[i].crowded);
        figures[i].measure(count);
        return 0;
    }
    return show_usage();
}
