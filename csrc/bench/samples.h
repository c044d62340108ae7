/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h -- what single calls took, one number each, and the line of JSON that sums them up.
 *
 * They lie in memory that forked children share, touched beforehand: adding one is a store.
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

/* Sort, and print {"figure": ..., "p50": ..., "p99": ..., "max": ...}, in nanoseconds. */
void samples_report_ticks(const char *figure, const struct samples *samples);
void samples_report_ns(const char *figure, const struct samples *samples);

#endif
