/* SPDX-License-Identifier: Apache-2.0 */
/* others.h -- attributes device time to containers, from the progress that processes publish.
 *
 * Each process publishes points of a curve, the device time that it has had (progress.h), with a
 * delay: when it sees that its work has ended. So there is a moment up to which all points are
 * known. A process that publishes none for PROGRESS_WAIT_NS is no longer waited for: what it had is
 * unknown.
 *
 * Between two points of a process, the time that it had is first assigned to where no other
 * container was at work; the rest is spread evenly over where others were.
 *
 * Pure; all times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_ARBITER_OTHERS_H
#define PYVGPU_ARBITER_OTHERS_H

#include "core/progress.h"
#include "core/region.h"

enum { OTHERS_SPANS = 2048 }; /* work of which it is not known yet what ran beside it */

struct others_process { /* one process */
    uint64_t at_ns;     /* its last point; 0: there was none */
    uint64_t known_ns;  /* it will publish nothing more up to here */
    uint32_t done;      /* at its last point */
};

/* One container. The arrays are rings, indexed by cell number. */
struct others_container {
    uint64_t at_work[OTHERS_CELLS]; /* a bit for each part of the cell in which it was */
    uint32_t had[OTHERS_CELLS];     /* ns that it had while others were at work, too */
    uint32_t beside[OTHERS_CELLS];  /* clock_file.others */
    uint16_t owner[OTHERS_CELLS];   /* the process that had it, + 1 */
    uint8_t marks[OTHERS_CELLS];    /* the time is a guess, or several processes had it */
    uint64_t until_ns;              /* all of it is known up to here */
};

struct others_span { /* work of one process, between two points */
    struct others_container *tenant;
    uint64_t from_ns, until_ns;
    uint64_t had_ns;
    unsigned number; /* of the process */
};

/* One device. All zero: nothing is known yet. */
struct others {
    uint64_t known_ns;              /* others_container.beside is known up to here */
    uint64_t several[OTHERS_CELLS]; /* parts in which more than one container was at work, */
    uint64_t masked_ns;             /* computed up to here */
    struct others_span spans[OTHERS_SPANS];
    unsigned span_count;
};

/* The set of containers has changed to these: what is not known yet stays unknown. */
void others_seat(struct others *others, struct others_container *const *tenants, unsigned count);

/* Extend the container's rings from *before*, their end so far, to *now*, with empty cells. */
void others_begin(struct others_container *tenant, uint64_t before, uint64_t now);

/* Take in the words that the container's process *number* published; NULL: it publishes none.
 * *has_work*: 0 only if it is known to have none at *now*, when it was seen. *before*: when it was
 * seen last before that. */
void others_see(struct others *others, struct others_container *tenant, struct others_process *lane,
                unsigned number, const uint64_t *words, int has_work, uint64_t before,
                uint64_t now);

/* Once all were seen, compute what ran beside each container, as far as that is known. */
void others_find(struct others *others, struct others_container *const *tenants, unsigned count);

#endif
