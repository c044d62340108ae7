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

#include "budget.h"
#include "compiler.h"
#include "credit.h"
#include "region.h"

/* One device, as this process has it. Zeros but for the last two: nothing was begun yet. */
struct governor {
    struct credit credit; /* bought and not yet given to launches */
    uint64_t bought_ns __attribute__((aligned(64)));
    uint64_t begun_ns;    /* the GPU time of that */
    uint64_t finished_ns; /* of what was paid from it, what is known to be done */
    uint32_t unknown;     /* launches in flight whose cost was a guess */
    int unlimited;        /* it pays so that others know, and never waits for a budget */
    uint32_t wishes;      /* it wishes for a quiet moment */
    uint32_t overlap;     /* GPU time that 1 ns of credit takes, of CLOCK_WHOLE; 0: all of it */
    uint64_t overlap_paid_ns;
    uint64_t overlap_busy_ns;
    uint32_t overlap_exact; /* so many that are not exact are not counted */
    uint64_t anew_ns;       /* nor what was paid by then */
    int64_t check_paid_ns;  /* of several streams beside others, */
    int64_t check_busy_ns;  /* and what they seem to have taken */
    int64_t corrected_ns;   /* since the last period, of what was begun after it */
    int64_t late_ns;        /* and of what was begun in it or before */
    uint64_t passed_ns;     /* until when that was */
    int64_t audit_paid_ns;  /* of work that followed upon work, with what was corrected since */
    int64_t audit_busy_ns;  /* and what it took */
    int64_t overdue_ns;     /* charged for work that should be done; given back when it is */
    uint64_t settled_ns;    /* what was begun until then is paid as it was measured */
    uint32_t several;       /* streams are in use */
    uint32_t beside;        /* others have been on the device of late */
    uint32_t wary;          /* costs were far off: no more at a time than a launch */
    struct usage_compute *shared;
    struct usage_work *work;
};

/* What the limits and the clock say now, each for CLOCK_WHOLE of the device's time. */
struct governor_share {
    uint32_t own;     /* vcore */
    uint32_t limit;   /* elastic: what it may have at most; hard: the same as own */
    uint32_t lent;    /* clock_lent(); 0 if there is no clock that can be believed */
    uint32_t quiet;   /* clock_is_quiet(): the budget is not waited for */
    uint64_t hush_ns; /* clock_hush() */
};

enum governor_answer {
    GOVERNOR_GO,   /* credit was bought, and the launch is paid */
    GOVERNOR_WAIT, /* until *until_ns, then ask again */
    GOVERNOR_FULL, /* too much is in flight: see some of it finished first, then ask again */
};

/* Pay for a launch: 0 if the credit does not cover it, and nothing is paid then. */
static inline int governor_pay(struct governor *governor, int64_t cost_ns)
{
    return credit_pay(&governor->credit, cost_ns);
}

/* GPU time that credit is worth: less where streams overlap. */
static inline int64_t governor_true_cost(const struct governor *governor, int64_t credit_ns)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    return overlap ? budget_part(credit_ns, overlap) : credit_ns;
}

/* Buy credit for a launch of *cost_ns*, which is paid with it, and for some more after it. */
enum governor_answer governor_buy(struct governor *governor, const struct governor_share *share,
                                  int64_t cost_ns, uint64_t now, uint64_t *until_ns);

/* How much was paid until now: what governor_finish() is told once all of it is done. */
uint64_t governor_paid(const struct governor *governor);

/* Everything up to *paid_ns* is done. */
void governor_finish(struct governor *governor, uint64_t paid_ns, uint64_t now);

/* Something that was begun at one moment was done at the other, beside others: the time between is
 * none without work, however long their turns were. */
void governor_worked(struct governor *governor, uint64_t begun_ns, uint64_t done_ns);

/* Take *short_ns* more (below 0: less) for launches that were measured, of which the last was begun
 * at *begun_ns*; see costs_learn(). */
void governor_correct(struct governor *governor, int64_t short_ns, uint64_t begun_ns);

/* Launches of some time ago took less than was charged for them; see costs_settle(). It is given
 * back as far as it is still owed: what was waited for is gone. */
void governor_forgive(struct governor *governor, int64_t too_much_ns);

/* A launch whose cost is a guess goes to the device (1), or was seen finished or failed (-1). As
 * long as it is there, others are told of much work. */
void governor_unknown(struct governor *governor, int change);

/* Launches of *paid_ns* in several streams took *busy_ns* of GPU time together, *exactly*, or as
 * far as is known. */
void governor_overlap(struct governor *governor, uint64_t paid_ns, uint64_t busy_ns, int exactly);

/* Whether that is uncertain, and would not be if it were measured alone. */
int governor_wants_quiet(const struct governor *governor);

/* What they cost is known better now, so that is to be measured again, and until then no launch
 * pays less than it costs by itself. */
void governor_overlap_anew(struct governor *governor);

/* What was paid from one purchase to the next, and is done. */
struct governor_period {
    uint64_t paid_ns;
    uint64_t from_ns;   /* the device began it; 0: not known */
    uint64_t giving_ns; /* as long as it may have paused, since not all of it was given to the
                           driver yet; 0: it went over to it from the one before at once */
    uint64_t given_ns;  /* when it was */
    uint64_t end_ns;
    int several;   /* streams were in use */
    uint32_t rate; /* clock_rate() of it */
    int alone;     /* clock_alone() */
    int beside;    /* clock_sharers() says that there are others, if not at that time */
};

/* What was paid too little or too much is taken or given back, as far as that is certain; whether
 * it was so much too little that costs cannot be true. */
int governor_period(struct governor *governor, const struct governor_period *period);

/* The device has been busy for *busy_ns* with what *paid_ns* were paid for. What that is too long
 * is charged until it is done. */
void governor_overdue(struct governor *governor, int64_t paid_ns, int64_t busy_ns);

/* Wish for a quiet moment up to *until_ns*, as the process in *slot*, in which to measure what
 * takes up to *longest_ns*; and no longer than that, if it is still this process that does. */
void governor_wish(struct governor *governor, uint64_t until_ns, uint64_t longest_ns,
                   uint32_t slot);
void governor_wish_no_more(struct governor *governor, uint64_t until_ns, uint32_t slot);

/* Give back what was bought and not yet used. */
void governor_return_credit(struct governor *governor);

/* The same, as at a hush: nothing is begun any more that was not bought anew. */
void governor_empty(struct governor *governor, uint64_t now);

/* For people: a launch waits, and has waited. */
void governor_waits(struct governor *governor);
void governor_waited(struct governor *governor, uint64_t waited_ns);

#endif
