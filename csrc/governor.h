/* SPDX-License-Identifier: Apache-2.0 */
/* governor.h -- a container's share of a device's time: what may be begun, and when.
 *
 * GPU time is paid before it is begun, from a budget that all processes of the container share and
 * that fills at the rate of their share. The budget is signed: as long as it is above 0 the next
 * piece of work may begin, however long it is, and the debt is waited for afterwards. What was paid
 * too much or too little is corrected when the work has been measured.
 *
 * A process does not pay launch by launch. It buys credit for a while, and each launch takes its
 * cost from that: one atomic subtraction. What it has bought and not seen finished is bounded, so
 * that neither a limit that changes nor a wrong estimate goes far.
 *
 * Pure: it reads no clock (*now* is CLOCK_MONOTONIC, ns), waits for nobody and knows no CUDA. All
 * functions may be called by several threads; state that is shared survives kill -9 anywhere.
 */
#ifndef PYVGPU_GOVERNOR_H
#define PYVGPU_GOVERNOR_H

#include "compiler.h"
#include "region.h"

/* One device, as this process has it. */
struct governor {
    int64_t credit_ns __attribute__((aligned(64))); /* bought and not yet given to launches */
    uint64_t bought_ns __attribute__((aligned(64)));
    uint64_t finished_ns; /* of that, what is known to be done */
    struct usage_compute *shared;
    struct usage_work *work;
};

/* What the limits and the clock say now, each for CLOCK_WHOLE of the device's time. */
struct governor_share {
    uint32_t own;   /* vcore */
    uint32_t limit; /* elastic: what it may have at most; hard: the same as own */
    uint32_t lent;  /* clock_file.lent; 0 if there is no clock that can be believed */
};

enum governor_answer {
    GOVERNOR_GO,   /* credit was bought: pay again, or go on with the launch it was for */
    GOVERNOR_WAIT, /* until *until_ns, then ask again */
    GOVERNOR_FULL, /* too much is in flight: see some of it finished first, then ask again */
};

/* Pay for a launch: 0 if the credit does not cover it, and nothing is paid then. */
static inline int governor_pay(struct governor *governor, int64_t cost_ns)
{
    if (likely(__atomic_sub_fetch(&governor->credit_ns, cost_ns, __ATOMIC_RELAXED) >= 0))
        return 1;
    __atomic_add_fetch(&governor->credit_ns, cost_ns, __ATOMIC_RELAXED);
    return 0;
}

/* Buy credit for a launch of *cost_ns* and some more after it; the launch itself is paid with
 * GOVERNOR_GO. */
enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns);

/* What was paid with *paid_ns* is done, and took *took_ns* of the device's time. */
void governor_finish(struct governor *governor, int64_t paid_ns, int64_t took_ns, uint64_t now);

/* Nothing of this process is on the device any more, as far as *bought_ns* at that moment. */
void governor_idle(struct governor *governor, uint64_t now);

#endif
