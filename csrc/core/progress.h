/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h -- publishes how much work a process has finished, and when, for the arbiter.
 *
 * Words of usage_file.progress are points of a curve: the device time that the process has had by
 * a given moment. Readers assume that it rises linearly from the beginning to the end of work, and
 * is flat from an end to the next beginning. Points closer to each other than PROGRESS_STEP_NS are
 * merged.
 *
 * Pure, except that it writes the words; times are CLOCK_MONOTONIC, ns. One thread writes at a
 * time.
 */
#ifndef PYVGPU_CORE_PROGRESS_H
#define PYVGPU_CORE_PROGRESS_H

#include "core/busy.h"
#include "core/region.h"

/* The arbiter waits for the points of finished work at most this long. */
#define PROGRESS_WAIT_NS UINT64_C(40000000)

/* Finished work is published after this time, even if earlier work of another stream is not
 * finished. */
#define PROGRESS_HELD_NS (PROGRESS_WAIT_NS / 2)

#define PROGRESS_STEP_NS ((uint64_t) OTHERS_CELL_NS) /* the resolution of clock_file.others */

struct progress {
    uint64_t *words;   /* NULL: it publishes nothing */
    unsigned at;       /* index of the last word written */
    int sure;          /* as in that word */
    uint64_t begin_ns; /* of the work that ends there */
    uint64_t end_ns;
    uint64_t done_ns;   /* device time until then */
    uint64_t shown_ns;  /* work that ran before this time is published */
    int64_t counted_ns; /* its device time in the bin that contains shown_ns */
    int64_t total_ns;   /* the part of busy.total_ns that is published */
};

/* Publish work that ran between two times and took *taken_ns* of device time. *sure*: that was
 * measured, not estimated from the time that other processes used. */
void progress_add(struct progress *progress, uint64_t from_ns, uint64_t until_ns, int64_t taken_ns,
                  int sure);

/* Publish the work that is finished at *now* and ran before *since_ns*, from when on unfinished
 * work may have run. Pieces of several streams end in any order, so they are not published one by
 * one. A piece that ran before the last point but ended after it is added to the next one. */
void progress_publish(struct progress *progress, const struct busy *busy, uint64_t since_ns,
                      uint64_t now);

struct progress_point {
    uint64_t at_ns; /* 0: there is none */
    uint32_t done;  /* in WORK_UNIT_NS; wraps */
    int begins;     /* work begins; else it ends */
    int sure;
};

/* Decode a word read at *now*. */
struct progress_point progress_point(uint64_t word, uint64_t now);

#endif
