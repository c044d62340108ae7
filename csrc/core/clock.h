/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h -- reads and validates the arbiter's clock file of a device, for the shim.
 *
 * The file belongs to the arbiter's user, perhaps not this process's, so it is never mapped, and
 * values that cannot be true are rejected: processor-sharing time passes no faster than time, and
 * no slower than with CLOCK_SHARERS processes, nor than the number of processes with work allows.
 * Without a clock, or with one that is late or false, a device counts as this process's own, and
 * nothing is lent.
 */
#ifndef PYVGPU_CORE_CLOCK_H
#define PYVGPU_CORE_CLOCK_H

#include <stdint.h>

#include "core/region.h"

#define CLOCK_STALE_NS UINT64_C(100000000) /* a clock whose last beat is older is ignored */
#define CLOCK_AHEAD_NS UINT64_C(1000000)   /* and one that is ahead by more */
#define CLOCK_SHARERS  64                  /* a process gets at least 1/64 of a device */

/* The last state read. Zeros: nothing yet. */
struct clock_view {
    int valid;
    int met; /* a clock was read once, though perhaps not a valid one */
    struct clock_file page;
    uint32_t slot;           /* of this process, in the usage file */
    uint32_t sharers;        /* processes with work at a time, at most, since *shared_ns*, */
    uint32_t sharers_before; /* and for as long before that */
    uint64_t shared_ns;
};

/* Read a consistent clock; -1 if there is none, or it was rewritten during every attempt. */
int clock_read(const char *path, struct clock_file *page);

/* Take over *page* if it passes validation; else the view becomes invalid. */
void clock_evaluate(struct clock_view *view, const struct clock_file *page, uint64_t now);

/* Whether the view reaches up to *when*; otherwise what it says of that time is extrapolated. */
int clock_covers(const struct clock_view *view, uint64_t when);

/* The part of the device's time that one process with work had from *begin* to *end*, of
 * CLOCK_WHOLE: all of it where there is no clock, and no less than clock_sharers() leave. */
uint32_t clock_rate(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now);

/* Whether it is certain that no other process had work from *begin* to *end*. Without a clock it
 * is, unless there was one before: then only if that knew of no other container. An arbiter that
 * has just started has counted none yet. */
int clock_alone(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now);

/* Up to when everything is known that will be: what others had, or else the clock's rate. */
uint64_t clock_known_until(const struct clock_view *view);

struct clock_others {
    int64_t had_ns;     /* device time that others had */
    int64_t at_work_ns; /* while this process was at work, which was this long; */
    int64_t unsure_ns;  /* for so much of it that is a guess */
};

/* What other containers had between these two times while this process was at work; 0 if that is
 * not known. */
int clock_others(const struct clock_view *view, uint64_t begin, uint64_t end,
                 struct clock_others *others);

/* Whether others had at most an eighth of the time, both by what they publish, a guess perhaps, and
 * by the clock's *rate* for it, of CLOCK_WHOLE: two estimates that err for different reasons. */
int clock_had_little(const struct clock_others *others, uint32_t rate);

/* For how long from *begin* on, up to *end*, no other process had work, ns; 0 if any had since
 * *since*, which is earlier. */
uint64_t clock_alone_time(const struct clock_view *view, uint64_t since, uint64_t begin,
                          uint64_t end);

/* The most processes with recent work at the same time, including this one. */
uint32_t clock_sharers(const struct clock_view *view);

/* For a container of low priority: whether others share the device, and have work; CLOCK_ABOVE_*, 0
 * without a clock. */
uint32_t clock_above(const struct clock_view *view, uint64_t now);

/* Whether no other container had work a moment ago; 0 without a clock. */
int clock_spared(const struct clock_view *view, uint64_t now);

/* How much elastic containers may have beyond their share, for each CLOCK_WHOLE of it. */
uint32_t clock_lent(const struct clock_view *view, uint64_t now);

#endif
