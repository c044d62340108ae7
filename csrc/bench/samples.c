/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c -- distributions; see samples.h. */
#include "samples.h"
#include "timer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIKE 2  /* the 10 ns are 24 or 25 ticks */
#define NEAR  64 /* a value farther away is not the next reading of the clock */

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

void samples_sort(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
}

double samples_at(const uint64_t *values, size_t count, double share)
{
    size_t wanted = (size_t) (share * (double) (count - 1));
    uint64_t value = values[wanted];
    size_t first = wanted;
    size_t end = wanted + 1;
    double low, high;

    while (first > 0 && value - values[first - 1] <= ALIKE)
        first--;
    while (end < count && values[end] - value <= ALIKE)
        end++;
    low = (double) values[first];
    high = (double) values[end - 1];
    if (first > 0 && values[first] - values[first - 1] < NEAR)
        low = (low + (double) values[first - 1]) / 2;
    if (end < count && values[end] - values[end - 1] < NEAR)
        high = (high + (double) values[end]) / 2;
    return low + (high - low) * ((double) (wanted - first) + 0.5) / (double) (end - first);
}

static double as_they_are(double ns)
{
    return ns;
}

static void report(const char *figure, const struct samples *samples, double (*ns_of)(double))
{
    const uint64_t *values = samples->values;
    size_t count = samples->capacity;

    samples_sort(samples->values, count);
    printf("{\"figure\": \"%s\", \"count\": %zu, \"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f, "
           "\"clock\": %.1f}\n",
           figure, count, ns_of(samples_at(values, count, 0.5)),
           ns_of(samples_at(values, count, 0.99)), ns_of((double) values[count - 1]),
           timer_own_ns());
    fflush(stdout);
}

void samples_report_ticks(const char *figure, const struct samples *samples)
{
    report(figure, samples, timer_ns);
}

void samples_report_ns(const char *figure, const struct samples *samples)
{
    report(figure, samples, as_they_are);
}
