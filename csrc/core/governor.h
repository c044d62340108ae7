/* SPDX-License-Identifier: Apache-2.0 */
/* governor.h -- token bucket for a container's GPU time: admits launches and accounts for them.
 *
 * The governor of a process follows one axis: the time for which the process keeps the device busy,
 * the union over its streams. Two points move along it. *busy_ns* is the measured time. *paid_ns*
 * is up to where the container's budget has paid: it is ahead of busy_ns by the expected time of
 * the work that was begun. The budget is a token bucket that fills at the rate of the share.
 *
 * - Work is placed on the axis behind the earlier work of its stream. If its expected end is beyond
 *   paid_ns, the difference is paid; if not, another stream keeps the device busy until then, and
 *   the work costs nothing more, as far as streams have recently run at the same time.
 * - Work that ends beyond paid_ns may begin while the budget is above 0, however long it is. After
 *   that the process pauses until the budget has recovered.
 * - Once work was seen finished, busy_ns grows by the time that it took, and paid_ns follows: an
 *   overestimate is refunded, an underestimate is charged.
 *
 * When others have work, too, the arbiter's clock says how much of the time belongs to this
 * process, some 30 ms later (clock.h). Until then the clock's last rate holds. Then the clock
 * corrects the charges of that time, where the process was at work without a gap; see governor.c.
 *
 * Pure: it reads no clock (*now* is CLOCK_MONOTONIC, ns), waits for nothing and knows no CUDA.
 * governor_buy() may be called by several threads; the rest by one at a time. The state that
 * processes share survives kill -9 anywhere.
 */
#ifndef PYVGPU_CORE_GOVERNOR_H
#define PYVGPU_CORE_GOVERNOR_H

#include "core/budget.h"
#include "core/busy.h"
#include "core/clock.h"
#include "core/idle.h"
#include "core/progress.h"
#include "core/region.h"

/* Consecutive launches of one stream that are done. Times are CLOCK_MONOTONIC, ns. */
struct governor_piece {
    uint64_t from_ns;  /* it did not run before */
    uint64_t given_ns; /* the driver had all of it: from here on it ran without a gap */
    uint64_t until_ns; /* when it was done */
    int64_t expected_ns;
    int guessed;       /* the cost of some of it was unknown, */
    int mixed;         /* or is the mean of very different ones */
    int sure;          /* the cost of all of it was known, without a guess at what others had */
    int joins;         /* its stream went on from the piece before it without a gap */
    int crowded;       /* other streams had work, too: it may have waited for them */
    uint64_t since_ns; /* when its stream was done with earlier work; 0: there was none */
};

/* A piece that was done beside others: since when it ran without a gap, and its charge. */
struct governor_finished {
    uint64_t since_ns; /* as in governor_piece */
    uint64_t begin_ns;
    uint64_t until_ns;
    int64_t taken_ns;
};

enum { GOVERNOR_FINISHED = 64 };

/* A time during which the process kept the device at work without a gap, beside others. */
struct governor_row {
    int64_t over_ns;    /* by how much it was charged more than its part of the time in which it can
                           have run, and */
    int64_t under_ns;   /* less than its part of the time in which it must have run */
    int crowded;        /* several streams had work: only the clock says what they took together */
    int mixed;          /* some of it is expected to take the mean of very different times */
    int unsure;         /* the cost of some of it is not known for sure */
    int guesses;        /* bins of it in which what others had is not known */
    int64_t later_ns;   /* charge beyond the time that has passed so far */
    int64_t whole_ns;   /* its length */
    int64_t length_ns;  /* since expectations were last compared with the clock: the length, */
    int64_t given_ns;   /* the part of it certainly at work, */
    int64_t counted_ns; /* the time by expectations, */
    int64_t share_ns;   /* and the time by the clock */
    int guessed;
};

/* One device, as this process uses it. Zeros but for the last three: nothing was begun yet. */
struct governor {
    uint64_t busy_ns;
    uint64_t paid_ns;
    uint64_t reach_ns;      /* where the last work in flight is expected to end, */
    uint64_t overdue_ns;    /* where overdue work, late already, perhaps ends, */
    const void *overdue_of; /* in which stream that is, */
    uint64_t late_ns;       /* and up to where it has certainly run */
    int paused;             /* since the budget was spent, until it has recovered */
    uint32_t pauses;        /* number of pauses so far */
    int running;            /* something is in flight, */
    int guessing;           /* some of which was never measured, */
    int guesses;            /* so many launches */
    int64_t ahead_ns;       /* expected time of the work in flight, summed over all streams, */
    int64_t beside_ns;      /* and over all but the one that ends last */
    uint32_t overlap;       /* the streams' union relative to that sum, of CLOCK_WHOLE; 0: all */
    int64_t apart_ns, together_ns; /* recently: the sum, and the union */
    int64_t carried_ns; /* what pieces of known cost were expected to take, and have not taken */
    uint32_t ratio; /* time that work takes beside others / expected time, of CLOCK_WHOLE; 0: 1 */
    uint64_t crowded_ns; /* when several streams last had work at the same time */
    uint64_t suspect_ns; /* until when costs are doubted, since a row was charged far too little */
    int64_t doubt_ns;    /* for so long rows were too short to confirm the ratio */
    struct governor_row row;
    struct governor_finished finished[GOVERNOR_FINISHED]; /* a ring, until the clock covers them */
    unsigned finished_first, finished_count;
    uint64_t known_ns;    /* what others had has been read from the clock up to here, */
    uint64_t reviewed_ns; /* and compared with the charges up to here */
    int unlimited;        /* it only pays to publish its use, and never waits for a budget */
    struct usage_compute *shared;
    struct usage_work *work;
    struct idle idle;
    struct progress progress;
    struct busy busy; /* last, for it is large */
};

/* Current limits and clock values, of CLOCK_WHOLE of the device's time. */
struct governor_share {
    uint32_t own;   /* vcore */
    uint32_t limit; /* elastic: the most it may have; hard: the same as own */
    uint32_t lent;  /* clock_lent(); 0 if no clock can be trusted */
    int beside;     /* other containers have a share of the device, */
    int spared;     /* and had no work on it a moment ago */
};

/* Where work of *ns* placed behind *after_ns* ends on the axis. */
static inline uint64_t governor_place(const struct governor *governor, uint64_t after_ns,
                                      int64_t ns)
{
    uint64_t busy = __atomic_load_n(&governor->busy_ns, __ATOMIC_RELAXED);

    return (after_ns > busy ? after_ns : busy) + (uint64_t) ns;
}

/* Estimated work in flight, ns. */
int64_t governor_in_flight(const struct governor *governor);

/* Pay for work of *ns* that ends at *end_ns* on the axis. 1: it may begin; 0: not before
 * *until_ns*, and nothing was paid. */
int governor_buy(struct governor *governor, const struct governor_share *share, uint64_t end_ns,
                 int64_t ns, uint64_t now, uint64_t *until_ns);

/* The same for work that governor_buy() refused: it may begin if overdue work of another stream
 * than *stream* keeps the device busy until *end_ns*. */
int governor_join(struct governor *governor, const void *stream, uint64_t end_ns, int64_t ns);

/* Pay unconditionally: the work begins anyway. */
void governor_pay(struct governor *governor, uint64_t end_ns, int64_t ns);

/* Count *ns* of paid work as done, since it will never be measured. */
void governor_trust(struct governor *governor, int64_t ns);

/* How long the budget needs to recover from its certain debt, with this number of *streams* with
 * work, ns. */
uint64_t governor_debt_time(const struct governor *governor, const struct governor_share *share,
                            int streams);

/* How much to buy at once beyond a launch, so that not every launch has to buy, ns. */
int64_t governor_chunk(const struct governor *governor, const struct governor_share *share);

/* Whether no other process had work since the device was done with the stream's earlier work: then
 * the time includes no switch between processes either. *since_ns* is 0 if there was none. */
int governor_alone(const struct clock_view *clock, uint64_t since_ns, uint64_t from_ns,
                   uint64_t until_ns, uint64_t now);

/* A piece is done. Returns the device time that it is estimated to have taken, ns. */
int64_t governor_finish(struct governor *governor, const struct governor_piece *piece,
                        const struct clock_view *clock, uint64_t now);

/* Expectations have changed: forget how much of them streams overlapped. */
void governor_reset_overlap(struct governor *governor);

/* The time that work running since *from_ns* has certainly taken by now, ns. */
int64_t governor_running(const struct clock_view *clock, uint64_t from_ns, uint64_t now);

/* Work in flight: how long all of it is expected to take, one by one; where the last of it is
 * expected to end on the axis; since when the first of it may have been running; whether there is
 * any, and any that was never measured. */
struct governor_flight {
    int64_t ahead_ns;
    int64_t longest_ns;     /* the part of ahead_ns in the stream that ends last, */
    uint64_t overdue_ns;    /* where work that takes longer than expected perhaps ends, */
    const void *overdue_of; /* and in which stream */
    uint64_t end_ns;
    uint64_t late_ns; /* up to where late work has certainly run */
    uint64_t since_ns;
    int running;
    int guessing;
    int guesses; /* the number of launches that were never measured */
};

/* Review the charges of the time that the clock covers by now, and move paid_ns to the end of the
 * work in flight. */
void governor_settle(struct governor *governor, const struct clock_view *clock,
                     const struct governor_flight *flight, uint64_t now);

/* Statistics: a launch begins to wait, and has waited. */
void governor_waits(struct governor *governor);
void governor_waited(struct governor *governor, uint64_t waited_ns);

#endif
