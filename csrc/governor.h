/* SPDX-License-Identifier: Apache-2.0 */
/* governor.h -- a container's share of a device's time: what may be begun, and what it cost.
 *
 * The governor of a process follows one axis: the time for which the process keeps the device busy,
 * the union over its streams. Two points move along it. *busy_ns* is what was measured. *paid_ns*
 * is up to where the container's budget has paid: it is ahead of busy_ns by the work that was begun
 * and is expected to take so long. The budget is a token bucket that fills at the rate of the
 * share.
 *
 * - Work is placed on the axis behind what its stream has before it. If its expected end is beyond
 *   paid_ns, the difference is paid; if not, another stream keeps the device busy until then, and
 * it costs nothing more; as far as streams have run at the same time of late.
 * - What is beyond paid_ns may begin while the budget is above 0, however long it is. Then the
 *   process pauses until the budget has recovered.
 * - Once work was seen finished, busy_ns grows by what it took, and paid_ns follows: what was
 *   expected too long is given back, what was expected too short is taken.
 *
 * How much of the time belongs to this process, when others have work too, the arbiter's clock says
 * some 30 ms later (clock.h). Until then its last word holds. Then it contradicts what was charged
 * meanwhile, where the process was at work without a gap; see governor.c.
 *
 * Pure: it reads no clock (*now* is CLOCK_MONOTONIC, ns), waits for nothing and knows no CUDA.
 * governor_buy() may be called by several threads; the rest by one at a time. What processes share
 * survives kill -9 anywhere.
 */
#ifndef PYVGPU_GOVERNOR_H
#define PYVGPU_GOVERNOR_H

#include "budget.h"
#include "busy.h"
#include "clock.h"
#include "progress.h"
#include "region.h"

/* Some launches of one stream, one after the other, that are done. Times are CLOCK_MONOTONIC, ns.
 */
struct governor_piece {
    uint64_t from_ns;  /* it did not run before */
    uint64_t given_ns; /* all of it was with the driver: from here on it ran without a gap */
    uint64_t until_ns; /* when it was done */
    int64_t expected_ns;
    int guessed;       /* nothing was known of some of it */
    int sure;          /* all of it was known, without a guess at what others had */
    int joins;         /* its stream went on from the piece before it without a gap */
    int crowded;       /* other streams had work, too: it may have waited for them */
    uint64_t since_ns; /* when its stream was done with what was before; 0: nothing was */
};

/* A piece that was done beside others: from when on it ran without a gap, and what it was charged.
 */
struct governor_finished {
    uint64_t since_ns; /* as of a piece */
    uint64_t begin_ns;
    uint64_t until_ns;
    int64_t taken_ns;
};

enum { GOVERNOR_FINISHED = 64 };

/* A time during which the process kept the device at work without a gap, beside others. */
struct governor_row {
    int64_t over_ns;    /* by how much it was charged more than its part of the time in which it can
                           have run, and */
    int64_t under_ns;   /* less than that of the time in which it must have */
    int crowded;        /* several streams had work: what they took together only the clock says */
    int guesses;        /* so many bins of it are not known by what others had */
    int64_t later_ns;   /* what took more than could be had yet */
    int64_t whole_ns;   /* how long it is */
    int64_t length_ns;  /* since expectations were last compared with the clock: so long, */
    int64_t given_ns;   /* of that certainly at work, */
    int64_t counted_ns; /* by expectations, */
    int64_t share_ns;   /* and by the clock */
    int guessed;
};

/* One device, as this process has it. Zeros but for the last three: nothing was begun yet. */
struct governor {
    uint64_t busy_ns;
    uint64_t paid_ns;
    uint64_t reach_ns;      /* where the last of what is in flight is expected to end, */
    uint64_t overdue_ns;    /* where it perhaps ends, since it takes longer than expected, */
    const void *overdue_of; /* in which stream, */
    uint64_t late_ns;       /* and where it has certainly come to */
    int paused;             /* since the budget was spent, until it has recovered */
    uint32_t pauses;        /* how many there were */
    int running;            /* something is in flight, */
    int guessing;           /* of which some was never measured */
    int64_t ahead_ns;       /* what is in flight in all streams is expected to take, one by one, */
    int64_t beside_ns;      /* and in all but the one that ends last */
    uint32_t overlap;       /* what the union of streams takes of that, of CLOCK_WHOLE; 0: all */
    int64_t apart_ns, together_ns; /* of late: one by one, and the union */
    uint32_t ratio; /* what work takes beside others to what is expected, of CLOCK_WHOLE; 0: 1 */
    uint64_t crowded_ns; /* when several streams had work at the same time last */
    int64_t doubt_ns;    /* for so long rows were too short to say anything of that */
    struct governor_row row;
    struct governor_finished finished[GOVERNOR_FINISHED]; /* a ring, until the clock covers them */
    unsigned finished_first, finished_count;
    uint64_t known_ns;    /* up to there the clock has said what others had, */
    uint64_t reviewed_ns; /* and up to there it was compared with what was charged */
    int unlimited;        /* it pays so that others know, and never waits for a budget */
    struct usage_compute *shared;
    struct usage_work *work;
    uint64_t *idle;   /* of usage_file.idle; NULL: it says nothing */
    uint64_t idle_ns; /* since when it has no work; 0: it has some */
    int idle_told;    /* the last of the words says so, */
    unsigned idle_at; /* which is this one */
    struct progress progress;
    struct busy busy; /* last, for it is large */
};

/* What the limits and the clock say now, each for CLOCK_WHOLE of the device's time. */
struct governor_share {
    uint32_t own;   /* vcore */
    uint32_t limit; /* elastic: what it may have at most; hard: the same as own */
    uint32_t lent;  /* clock_lent(); 0 if there is no clock that can be believed */
    int beside;     /* other containers have a share of the device */
};

/* Where work of *ns* ends on the axis, if it comes behind *after_ns*. */
static inline uint64_t governor_place(const struct governor *governor, uint64_t after_ns,
                                      int64_t ns)
{
    uint64_t busy = __atomic_load_n(&governor->busy_ns, __ATOMIC_RELAXED);

    return (after_ns > busy ? after_ns : busy) + (uint64_t) ns;
}

/* How much work is in flight, as far as is known, ns. */
int64_t governor_in_flight(const struct governor *governor);

/* Pay for work of *ns* that ends at *end_ns* on the axis: 1 if it may begin. 0: not before
 * *until_ns*. */
int governor_buy(struct governor *governor, const struct governor_share *share, uint64_t end_ns,
                 int64_t ns, uint64_t now, uint64_t *until_ns);

/* The same for work that may not begin by that: it may if *stream* is not the one of which work
 * takes longer than expected, and which keeps the device at work until then. */
int governor_join(struct governor *governor, const void *stream, uint64_t end_ns, int64_t ns);

/* The same without asking: it begins anyway. */
void governor_pay(struct governor *governor, uint64_t end_ns, int64_t ns);

/* Work of *ns* was paid that nobody will measure: it counts as done. */
void governor_trust(struct governor *governor, int64_t ns);

/* How long the budget needs to recover from what it certainly owes now, of so many *streams* with
 * work, ns. */
uint64_t governor_debt_time(const struct governor *governor, const struct governor_share *share,
                            int streams);

/* What is bought at once beyond a launch, so that not each one has to, ns. */
int64_t governor_chunk(const struct governor *governor, const struct governor_share *share);

/* Whether no other process had work since the device was done with what was before it: then no
 * switch from one process to another is in it either. *since_ns* is 0 if nothing was before it. */
int governor_alone(const struct clock_view *clock, uint64_t since_ns, uint64_t from_ns,
                   uint64_t until_ns, uint64_t now);

/* A piece is done. Returns what it took of the device's time, as far as is known, ns. */
int64_t governor_finish(struct governor *governor, const struct governor_piece *piece,
                        const struct clock_view *clock, uint64_t now);

/* What is expected has changed. */
void governor_expect_anew(struct governor *governor);

/* How much work that has been running since *from_ns* has certainly taken by now, ns. */
int64_t governor_running(const struct clock_view *clock, uint64_t from_ns, uint64_t now);

/* What is in flight: how long all of it is expected to take, one by one; where the last of it is
 * expected to end on the axis; since when the first of it may have been running; whether there is
 * anything, and anything of it was never measured. */
struct governor_flight {
    int64_t ahead_ns;
    int64_t longest_ns;     /* what is in the stream that ends last, of that, */
    uint64_t overdue_ns;    /* where work that takes longer than expected perhaps ends, */
    const void *overdue_of; /* and in which stream */
    uint64_t end_ns;
    uint64_t late_ns; /* and where it has certainly come to */
    uint64_t since_ns;
    int running;
    int guessing;
};

/* Look again at what the clock covers by now, and let paid_ns follow what is in flight. */
void governor_settle(struct governor *governor, const struct clock_view *clock,
                     const struct governor_flight *flight, uint64_t now);

/* Beside others: nothing has been in flight since *since_ns*, as was seen just now. When it is seen
 * again, it is published. */
void governor_rest(struct governor *governor, uint64_t since_ns, uint64_t now);

/* Work is about to be given to the device. Any thread may say so. */
void governor_work(struct governor *governor, uint64_t now);

static inline int governor_rests(const struct governor *governor)
{
    return __atomic_load_n(&governor->idle_ns, __ATOMIC_RELAXED) != 0;
}

/* For people: a launch waits, and has waited. */
void governor_waits(struct governor *governor);
void governor_waited(struct governor *governor, uint64_t waited_ns);

#endif
