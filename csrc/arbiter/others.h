/* SPDX-License-Identifier: Apache-2.0 */
/* others.h -- what each container had of a device, by what its processes published of it.
 *
 * Each process publishes points of the device's time that it has had (progress.h), some time later:
 * when it sees that its work has ended. So there is a moment up to which all points are known. A
 * process that publishes none for OTHERS_WAIT_NS is no longer awaited: what it had is not known.
 *
 * Between two points of a container the device was first its own where no other container was at
 * work; the rest it had evenly, beside others.
 *
 * Pure; all times are CLOCK_MONOTONIC, ns.
 */
#ifndef PYVGPU_OTHERS_H
#define PYVGPU_OTHERS_H

#include "progress.h"
#include "region.h"

#define OTHERS_WAIT_NS UINT64_C(40000000) /* for what a process has finished, at most */

enum { OTHERS_SPANS = 2048 }; /* of work, of which it is not known yet what was beside them */

struct others_lane {   /* one process */
    uint64_t at_ns;    /* its last point; 0: there was none */
    uint64_t known_ns; /* up to here it will say no more */
    uint32_t done;     /* at its last point */
};

/* One container. Rings, by the number of the cell. */
struct others_tenant {
    uint64_t at_work[OTHERS_CELLS]; /* whether it was, a bit for each part of the cell */
    uint32_t had[OTHERS_CELLS];     /* ns, while others were at work, too */
    uint32_t beside[OTHERS_CELLS];  /* clock_file.others */
    uint16_t owner[OTHERS_CELLS];   /* the process that had it, + 1 */
    uint8_t marks[OTHERS_CELLS];    /* that is a guess, or several processes had it */
    uint64_t until_ns;              /* up to where all of it is known */
};

struct others_span { /* work of one process, between two points */
    struct others_tenant *tenant;
    uint64_t from_ns, until_ns;
    uint64_t had_ns;
    unsigned number; /* of the process */
};

/* One device. Zeros: nothing is known yet. */
struct others {
    uint64_t known_ns;              /* up to here others_tenant.beside is */
    uint64_t several[OTHERS_CELLS]; /* parts in which more than one container was at work, */
    uint64_t masked_ns;             /* up to here */
    struct others_span spans[OTHERS_SPANS];
    unsigned span_count;
};

/* The containers are others than before, namely these: of what is not known yet nothing becomes
 * known. */
void others_seat(struct others *others, struct others_tenant *const *tenants, unsigned count);

/* There is time up to *now*, of which *before* was the end until now: what is new is empty. */
void others_begin(struct others_tenant *tenant, uint64_t before, uint64_t now);

/* The process *number* of a container published these words, NULL: none. *has_work*, unless it is
 * known to have none at *now*, when it was seen; *before* is when it was seen the time before. */
void others_see(struct others *others, struct others_tenant *tenant, struct others_lane *lane,
                unsigned number, const uint64_t *words, int has_work, uint64_t before,
                uint64_t now);

/* All were seen: find out what each had beside it, as far as that is known. */
void others_find(struct others *others, struct others_tenant *const *tenants, unsigned count);

#endif
