/* SPDX-License-Identifier: Apache-2.0 */
/* lending.h -- processor-sharing model of one device: time per container, and what can be lent.
 *
 * A device gives time slices in turn to each process that has work. So a kernel takes longer by the
 * wall clock the more neighbours there are, and only the device knows how much of that time was its
 * own. The model follows the device from what processes publish about themselves: the work that
 * each has begun is its backlog, all backlogs are served at the same rate, and work that a process
 * knows to be finished leaves the backlog.
 *
 * Each container has a clock of its own, share_ns: it advances by the device time that one of its
 * processes was given, or would have been given. Two neighbours of 30 and 70 percent are not slowed
 * down alike: the smaller one is never alone, the larger one is for two fifths of the time. So a
 * clock also records when within a tick its rate changed.
 *
 * A container has a priority: low, normal or high. One of low priority only gets the time that the
 * others leave, so the model reports whether any of those has work (lending_has_work()), and
 * reserves no device time for it that an elastic container of higher priority may have.
 *
 * The model also computes the lendable time: how much elastic containers may use beyond their
 * share, out of the shares that other containers do not use. And it finds the times in which only
 * one process had work: a measurement taken then includes no time slices of others. It reports them
 * only afterwards, once all others were seen to have begun nothing meanwhile.
 *
 * Pure: it reads no clock and no file; all times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_ARBITER_LENDING_H
#define PYVGPU_ARBITER_LENDING_H

#include "arbiter/others.h"
#include "core/region.h"

#include <string.h>

#define LENDING_TENANTS 1024 /* containers; with more, what others had is not computed */
#define LENDING_BUSY    512  /* at most so many processes with work are modelled */
#define LENDING_SLOWEST 64   /* share_ns grows by at least 1/64 of the elapsed time */
#define LENDING_POINTS  8    /* points of a clock in one tick */
#define LENDING_STILL   4 /* a process seen without work so many times will publish no more of it */
#define LENDING_MOMENTS 16 /* times in which a process was alone; see clock_file */

struct lending_process { /* one process */
    uint64_t backlog_ns;
    uint64_t fresh_ns;      /* work begun since the last tick */
    struct usage_work seen; /* as last published */
    uint32_t known;         /* it was seen at all */
    uint32_t unchanged;     /* times in a row that `seen` was the same */
    uint32_t still;         /* times in a row that it had no work and had begun none since */
    uint64_t idle[2];       /* as published; see usage_file */
    struct others_process others;
};

enum lending_priority { LENDING_LOW = -1, LENDING_NORMAL, LENDING_HIGH };

struct lending_container { /* one container */
    struct lending_process *lanes;
    unsigned lane_count;
    uint32_t own;   /* its share, of CLOCK_WHOLE */
    uint32_t limit; /* the most it may have: the same as own unless it is elastic */
    uint32_t lent;  /* as in its clock_file */
    enum lending_priority priority;
    uint64_t ahead_ns;  /* accepted work that it began beyond its share of the time */
    uint64_t bought_ns; /* when it last paid for work, and so began it; 0: not known */
    uint64_t share_ns;  /* its clock */
    uint64_t before_ns; /* its clock at the last tick */
    uint64_t taken_ns;  /* time that the model gave it in this tick and the device gave to others */
    struct clock_sample points[LENDING_POINTS]; /* of the clock since the last tick */
    unsigned point_count;
    unsigned running;   /* its lanes with work at the modelled moment */
    unsigned sharers;   /* number of processes that divided the device then */
    uint64_t active_ns; /* when it last had work */
    uint64_t woken_ns;  /* when it first had work after a pause */
    uint64_t waited_ns; /* when it was last seen to wait for its share */
    uint32_t used;      /* recent use, of CLOCK_WHOLE */
    uint32_t busy;      /* its processes that had work since the last tick */
    struct clock_alone moments[LENDING_MOMENTS]; /* when one of its processes was alone */
    unsigned moment;                             /* the last of them */
    struct others_container others;
};

struct lending {
    uint64_t now_ns;
    uint32_t busy; /* processes that had work since the last tick */
    uint32_t lent; /* the most that any of them is lent */
    uint32_t tenants;
    uint32_t outside;      /* 1: one of them stands for all processes outside of containers */
    uint64_t seated_ns;    /* since when the containers have been these */
    struct others *others; /* NULL: what each has had is not computed */
};

/* Start the model at *now*. Clocks begin with the time since boot and never show more, so that they
 * also grow from one arbiter to the next. */
static inline void lending_start(struct lending *lending, uint64_t now)
{
    *lending = (struct lending) {.now_ns = now};
}

/* The set of containers has changed to these: forget what depended on the former set. */
void lending_seat(struct lending *lending, struct lending_container *const *tenants,
                  unsigned count);

/* A process published this work; *idle* is NULL if it does not publish when it had none. */
void lending_see(struct lending_process *lane, struct usage_work work, const uint64_t *idle);

/* The container waits for its share: it has none left, and work for more. */
static inline void lending_wait(struct lending_container *tenant, uint64_t now)
{
    tenant->waited_ns = now;
}

/* Whether the container recently had work, or waited for its share. */
int lending_is_active(const struct lending_container *tenant, uint64_t now);

/* Whether a process had no work when it was seen last. */
int lending_is_idle(const struct lending_process *lane);

/* Whether a process has work now, *passed_ns* after the last tick, going by the words that it
 * published since lending_see(); *idle* as there. */
int lending_has_work(const struct lending_process *lane, struct usage_work work,
                     const uint64_t *idle, uint64_t passed_ns, uint64_t now);

/* Serve all backlogs up to *now*, then compute what each container may be lent. */
void lending_tick(struct lending *lending, struct lending_container *const *tenants, unsigned count,
                  uint64_t now);

#endif
