/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h -- samples of call durations, and their summary as a line of JSON.
 *
 * They are in memory that forked children share, touched beforehand: adding one is a store.
 */
#ifndef PYVGPU_BENCH_SAMPLES_H
#define PYVGPU_BENCH_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

struct samples {
    uint64_t *values; /* ticks of timer.h, or nanoseconds: the reporter says which */
    size_t capacity;
};

/* Room for *capacity* samples; ends the program if there is none. */
struct samples samples_make(size_t capacity);

void samples_sort(uint64_t *values, size_t count);

/* The quantile *share* of the sorted *values*. Some clocks advance in steps of 10 ns; so among
 * equal values it is interpolated from halfway to the value before to halfway to the value after.
 */
double samples_at(const uint64_t *values, size_t count, double share);

/* Sort, and print {"figure": ..., "p50": ..., "p99": ..., "max": ...}, in nanoseconds. */
void samples_report_ticks(const char *figure, const struct samples *samples);
void samples_report_ns(const char *figure, const struct samples *samples);

#endif
