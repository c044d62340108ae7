/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c -- distributions; see samples.h. */
#include "samples.h"
#include "timer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct samples samples_make(size_t capacity)
{
    struct samples samples = {.capacity = capacity};

    samples.values = mmap(NULL, capacity * sizeof(*samples.values), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (samples.values == MAP_FAILED) {
        perror("load: no memory for the samples");
        exit(1);
    }
    memset(samples.values, 0, capacity * sizeof(*samples.values));
    return samples;
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *) left;
    uint64_t b = *(const uint64_t *) right;

    return (a > b) - (a < b);
}

static double as_they_are(uint64_t ns)
{
    return (double) ns;
}

static void report(const char *figure, const struct samples *samples, double own,
                   double (*ns_of)(uint64_t))
{
    const uint64_t *values = samples->values;
    size_t last = samples->capacity - 1;

    qsort(samples->values, samples->capacity, sizeof(*samples->values), compare);
    printf("{\"figure\": \"%s\", \"count\": %zu, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f, "
           "\"clock\": %.1f}\n",
           figure, samples->capacity, ns_of(values[last / 2]), ns_of(values[last * 99 / 100]),
           ns_of(values[last]), own);
}

void samples_report_ticks(const char *figure, const struct samples *samples)
{
    report(figure, samples, timer_own_ns(), timer_ns);
}

void samples_report_ns(const char *figure, const struct samples *samples)
{
    report(figure, samples, 0, as_they_are);
}
