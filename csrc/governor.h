/* SPDX-License-Identifier: Apache-2.0 */
/* governor.h -- a container's share of a device's time: what may be begun, and when.
 *
 * GPU time is paid before it is begun, from a budget that all processes of the container share and
 * that fills at the rate of their share. The budget is signed: as long as it is above 0 the next
 * piece of work may begin, however long it is, and the debt is waited for afterwards. What was paid
 * too much or too little is corrected when the work has been measured.
 *
 * A process does not pay launch by launch. It buys credit for a while, and each launch takes its
 * cost from that: one atomic subtraction. What it has paid and not seen finished is bounded, so
 * that neither a limit that changes nor a wrong estimate goes far.
 *
 * Streams that run beside each other take less of the device than the sum of their launches;
 * credit is sold cheaper by as much, as far as it was measured.
 *
 * Pure: it reads no clock (*now* is CLOCK_MONOTONIC, ns), waits for nobody and knows no CUDA. All
 * functions may be called by several threads; state that is shared survives kill -9 anywhere.
 */
#ifndef PYVGPU_GOVERNOR_H
#define PYVGPU_GOVERNOR_H

#include "compiler.h"
#include "region.h"

/* One device, as this process has it. Zeros but for the last two: nothing was begun yet. */
struct governor {
    int64_t credit_ns __attribute__((aligned(64))); /* bought and not yet given to launches */
    uint64_t bought_ns __attribute__((aligned(64)));
    uint64_t finished_ns; /* of what was paid from it, what is known to be done */
    uint32_t unknown;     /* launches in flight whose cost was a guess */
    uint32_t overlap;     /* GPU time that 1 ns of credit takes, of CLOCK_WHOLE; 0: all of it */
    uint64_t overlap_paid_ns;
    uint64_t overlap_busy_ns;
    struct usage_compute *shared;
    struct usage_work *work;
};

/* What the limits and the clock say now, each for CLOCK_WHOLE of the device's time. */
struct governor_share {
    uint32_t own;   /* vcore */
    uint32_t limit; /* elastic: what it may have at most; hard: the same as own */
    uint32_t lent;  /* clock_lent(); 0 if there is no clock that can be believed */
};

enum governor_answer {
    GOVERNOR_GO,   /* credit was bought, and the launch is paid */
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

/* Buy credit for a launch of *cost_ns*, which is paid with it, and for some more after it. */
enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns);

/* How much was paid until now: what governor_finish() is told once all of it is done. */
uint64_t governor_paid(const struct governor *governor);

/* Everything up to *paid_ns* is done. */
void governor_finish(struct governor *governor, uint64_t paid_ns, uint64_t now);

/* Take *short_ns* more (below 0: less) for launches that were measured; see costs_learn(). */
void governor_correct(struct governor *governor, int64_t short_ns);

/* A launch whose cost is a guess goes to the device (1), or was seen finished or failed (-1). As
 * long as it is there, others are told of much work. */
void governor_unknown(struct governor *governor, int change);

/* Several streams were used, on which launches of *paid_ns* took *busy_ns* of GPU time together. */
void governor_overlap(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns);

/* For people: a launch waits, and has waited. */
void governor_waits(struct governor *governor);
void governor_waited(struct governor *governor, uint64_t waited_ns);

#endif
