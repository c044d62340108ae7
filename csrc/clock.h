/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h -- the arbiter's clock of a device, as a shim reads and judges it.
 *
 * The file belongs to somebody else, perhaps another user, so it is never mapped and nothing in it
 * is believed that cannot be true: processor-sharing time passes no faster than time, and no slower
 * than with CLOCK_SHARERS processes. Without a clock, or with one that is late or lies, a device
 * counts as one's own, and nothing is lent.
 */
#ifndef PYVGPU_CLOCK_H
#define PYVGPU_CLOCK_H

#include <stdint.h>

#include "region.h"

#define CLOCK_STALE_NS UINT64_C(100000000) /* a clock whose last beat is older has no word */
#define CLOCK_AHEAD_NS UINT64_C(1000000)   /* and one that is ahead by more, neither */
#define CLOCK_SHARERS  64                  /* a process gets at least this part of a device */
#define CLOCK_ALONE    (CLOCK_WHOLE - CLOCK_WHOLE / 20) /* from here on nobody else was there */
#define CLOCK_BLUR_NS  UINT64_C(10000000) /* to which the arbiter knows when something was */

/* What was read last. Zeros: nothing yet. */
struct clock_view {
    int valid;
    struct clock_file page;
};

/* Read a clock whole; -1 if there is none, or it was written meanwhile again and again. */
int clock_read(const char *path, struct clock_file *page);

/* Take *page* over if it can be believed; else the view is as good as none. */
void clock_judge(struct clock_view *view, const struct clock_file *page, uint64_t now);

/* Does the view reach up to *when*? Otherwise what it says of then is foreseen. */
int clock_covers(const struct clock_view *view, uint64_t when);

/* The part of the device's time that one process with work had from *begin* to *end*, of
 * CLOCK_WHOLE: all of it where there is no clock, and less than CLOCK_ALONE where it is not certain
 * that nobody else was there. */
uint32_t clock_rate(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now);

/* What elastic containers may have beyond their share, of CLOCK_WHOLE of it. */
uint32_t clock_lent(const struct clock_view *view, uint64_t now);

#endif
