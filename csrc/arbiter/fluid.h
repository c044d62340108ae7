/* SPDX-License-Identifier: Apache-2.0 */
/* fluid.h -- one device's time, as the processes with work on it share it.
 *
 * A device gives its time in slices, in turn, to each process that has work. So a kernel takes
 * longer by the clock the more neighbours there are, and nobody but the device knows how much of
 * that time was its own. The model follows the device from what processes publish of themselves:
 * what each has begun is its backlog, all backlogs are served at the same rate, and what a process
 * knows to be finished is none any more.
 *
 * Each container has a clock of its own, share_ns: by how much of a device's time one of its
 * processes was given, or would have been. Two neighbours of 30 and 70 percent are not slowed down
 * alike: the smaller is never alone, the other one is for two fifths of the time. So a clock also
 * remembers when within a tick its rate changed.
 *
 * A container has a priority: low, normal or high. One of low priority only gets what the others
 * leave, so the model says of it whether any of those has work (fluid_has_work()), and nothing of a
 * device's time is kept for it that an elastic one of them may have.
 *
 * It also says what elastic containers may have beyond their share: what the shares of those who
 * have no use for them leave over. And it says during which time a process was the only one with
 * work: what was measured then has no turns of others in it. That is said only afterwards, when all
 * others were seen to have begun nothing meanwhile.
 *
 * Pure: it reads no clock and no file; all times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_FLUID_H
#define PYVGPU_FLUID_H

#include "arbiter/others.h"
#include "region.h"

#include <string.h>

#define FLUID_TENANTS 1024 /* containers; of more it is not known what others had */
#define FLUID_BUSY    512  /* processes with work that are told apart; more are as many */
#define FLUID_SLOWEST 64   /* share_ns never grows by less than this part of the time */
#define FLUID_POINTS  8    /* of a clock in one tick */
#define FLUID_STILL   4    /* times that a process is seen without work: then it has said all */
#define FLUID_MOMENTS 16   /* in which a process was alone; see clock_file */

struct fluid_lane { /* one process */
    uint64_t backlog_ns;
    uint64_t fresh_ns;      /* that was begun since the last tick */
    struct usage_work seen; /* as it published it last */
    uint32_t known;         /* it was seen at all */
    uint32_t unchanged;     /* times in a row that it was seen so */
    uint32_t still;         /* times in a row that it had no work since it was seen before */
    uint64_t idle[2];       /* as it published them; see usage_file */
    struct others_lane others;
};

enum fluid_priority { FLUID_LOW = -1, FLUID_NORMAL, FLUID_HIGH };

struct fluid_tenant { /* one container */
    struct fluid_lane *lanes;
    unsigned lane_count;
    uint32_t own;   /* its share, of CLOCK_WHOLE */
    uint32_t limit; /* what it may have at most: the same as own unless it is elastic */
    uint32_t lent;  /* as in its clock_file */
    enum fluid_priority priority;
    uint64_t ahead_ns;  /* work that it began beyond its share of the time, as is believed */
    uint64_t bought_ns; /* when it last paid for work, and so began it; 0: not known */
    uint64_t share_ns;  /* its clock */
    uint64_t before_ns; /* what it was at the last tick */
    uint64_t taken_ns;  /* of what the model gave it in this tick, the device gave to others */
    struct clock_sample points[FLUID_POINTS]; /* of it since the last tick */
    unsigned point_count;
    unsigned running;   /* of its lanes, at the moment that is being looked at */
    unsigned sharers;   /* among whom the device was divided then */
    uint64_t active_ns; /* when it last had work */
    uint64_t woken_ns;  /* when it had work for the first time after a pause */
    uint64_t waited_ns; /* when it was last seen to wait for its share */
    uint32_t used;      /* of CLOCK_WHOLE, of late */
    struct clock_alone moments[FLUID_MOMENTS]; /* when one of its processes was alone */
    unsigned moment;                           /* the last of them */
    struct others_tenant others;
};

struct fluid {
    uint64_t now_ns;
    uint32_t busy; /* processes that had work since the last tick */
    uint32_t lent; /* to any of them at most */
    uint32_t tenants;
    uint32_t outside;      /* of them, stands for processes that belong to none: 1 or 0 */
    uint64_t seated_ns;    /* since when there are these containers */
    struct others *others; /* NULL: nothing is said of what each has had */
};

/* From here on. Clocks begin with the time since boot and never show more, so that they also grow
 * from one arbiter to the next. */
static inline void fluid_start(struct fluid *fluid, uint64_t now)
{
    *fluid = (struct fluid) {.now_ns = now};
}

/* There are other containers than at the last tick, namely these. */
void fluid_seat(struct fluid *fluid, struct fluid_tenant *const *tenants, unsigned count);

/* A process of a container published this; *idle* is NULL if it does not say when it had no work.
 */
void fluid_see(struct fluid_lane *lane, struct usage_work work, const uint64_t *idle);

/* The container waits for its share: it has none left, and work for more. */
static inline void fluid_wait(struct fluid_tenant *tenant, uint64_t now)
{
    tenant->waited_ns = now;
}

/* Whether the container has had work, or waited for its share, of late. */
int fluid_is_active(const struct fluid_tenant *tenant, uint64_t now);

/* Whether a process had no work when it was seen last. */
int fluid_is_idle(const struct fluid_lane *lane);

/* Whether a process has work now, by what it published since fluid_see() and *passed_ns* after the
 * last tick; *idle* as there. */
int fluid_has_work(const struct fluid_lane *lane, struct usage_work work, const uint64_t *idle,
                   uint64_t passed_ns, uint64_t now);

/* Serve all backlogs up to *now*, then say what is to lend. */
void fluid_tick(struct fluid *fluid, struct fluid_tenant *const *tenants, unsigned count,
                uint64_t now);

#endif
