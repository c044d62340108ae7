/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h -- the arbiter's clock of a device, as a shim reads and judges it.
 *
 * The file belongs to somebody else, perhaps another user, so it is never mapped and nothing in it
 * is believed that cannot be true: processor-sharing time passes no faster than time, and no slower
 * than with CLOCK_SHARERS processes, nor than the number of those with work allows. Without a
 * clock, or with one that is late or lies, a device counts as one's own, and nothing is lent.
 */
#ifndef PYVGPU_CLOCK_H
#define PYVGPU_CLOCK_H

#include <stdint.h>

#include "region.h"

#define CLOCK_STALE_NS UINT64_C(100000000) /* a clock whose last beat is older has no word */
#define CLOCK_AHEAD_NS UINT64_C(1000000)   /* and one that is ahead by more, neither */
#define CLOCK_SHARERS  64                  /* a process gets at least this part of a device */

/* What was read last. Zeros: nothing yet. */
struct clock_view {
    int valid;
    int met; /* there was one, though perhaps none to be believed */
    struct clock_file page;
    uint32_t slot;           /* of this process, in the usage file */
    uint32_t sharers;        /* processes with work at a time, at most, since *shared_ns*, */
    uint32_t sharers_before; /* and for as long before that */
    uint64_t shared_ns;
};

/* Read a clock whole; -1 if there is none, or it was written meanwhile again and again. */
int clock_read(const char *path, struct clock_file *page);

/* Take *page* over if it can be believed; else the view is as good as none. */
void clock_judge(struct clock_view *view, const struct clock_file *page, uint64_t now);

/* Does the view reach up to *when*? Otherwise what it says of then is foreseen. */
int clock_covers(const struct clock_view *view, uint64_t when);

/* The part of the device's time that one process with work had from *begin* to *end*, of
 * CLOCK_WHOLE: all of it where there is no clock, and no less than clock_sharers() leave. */
uint32_t clock_rate(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now);

/* Whether it is certain that nobody but this process had work from *begin* to *end*. Without a
 * clock that is so unless there was one: then only if that knew of nobody else. An arbiter that
 * begins has counted nobody yet. */
int clock_alone(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now);

/* Up to when all is known that will be: what others had, or else what the clock says. */
uint64_t clock_known_until(const struct clock_view *view);

struct clock_others {
    int64_t had_ns;     /* by others of the device's time, */
    int64_t at_work_ns; /* while this process was at work, for so long; */
    int64_t unsure_ns;  /* so long that is a guess */
};

/* What other containers had between these two times while this process was at work; 0 if that is
 * not known. */
int clock_others(const struct clock_view *view, uint64_t begin, uint64_t end,
                 struct clock_others *others);

/* For how long from *begin* on, up to *end*, no other process had work, ns; 0 if any had since
 * *since*, which is earlier. */
uint64_t clock_alone_time(const struct clock_view *view, uint64_t since, uint64_t begin,
                          uint64_t end);

/* How many processes have work at a time, with this one, as far as is known of late. */
uint32_t clock_sharers(const struct clock_view *view);

/* Of a container of low priority: whether others share the device, and have work; CLOCK_ABOVE_*, 0
 * without a clock. */
uint32_t clock_above(const struct clock_view *view, uint64_t now);

/* What elastic containers may have beyond their share, of CLOCK_WHOLE of it. */
uint32_t clock_lent(const struct clock_view *view, uint64_t now);

#endif
