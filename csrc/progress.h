/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h -- what a process has finished, and when, as it publishes it for the arbiter.
 *
 * Words of usage_file.progress are points of a curve: the device's time that the process has had by
 * a moment. Between the beginning of work and its end the curve is taken to rise evenly;
 * from an end to the next beginning it is flat. Points that are nearer to each other than
 * PROGRESS_STEP_NS become one.
 *
 * Pure, but for the words; times are CLOCK_MONOTONIC, ns. One thread writes at a time.
 */
#ifndef PYVGPU_PROGRESS_H
#define PYVGPU_PROGRESS_H

#include "region.h"

#define PROGRESS_STEP_NS ((uint64_t) OTHERS_CELL_NS) /* others learn no more of it */

struct progress {
    uint64_t *words;   /* NULL: it publishes nothing */
    unsigned at;       /* the last that was written */
    int sure;          /* what that says */
    uint64_t begin_ns; /* of what ends there */
    uint64_t end_ns;
    uint64_t done_ns;
};

/* Work that ran between these two times has taken *taken_ns* of the device's. *sure*: what it takes
 * is known without a guess at what others had meanwhile. */
void progress_add(struct progress *progress, uint64_t from_ns, uint64_t until_ns, int64_t taken_ns,
                  int sure);

struct progress_point {
    uint64_t at_ns; /* 0: there is none */
    uint32_t done;  /* in WORK_UNIT_NS; wraps */
    int begins;     /* work; else it ends */
    int sure;
};

/* The point that a word says, as read at *now*. */
struct progress_point progress_point(uint64_t word, uint64_t now);

#endif
