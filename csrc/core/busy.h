/* SPDX-License-Identifier: Apache-2.0 */
/* busy.h -- accumulates the time in which a process keeps a device busy: the union over its
 * streams.
 *
 * Work of several streams that runs at the same time occupies the device once. Each piece of work
 * says when it ran and how much device time it took; the union of all pieces is kept in a ring of
 * bins. Pieces may come in any order. Work older than the ring counts once, for the time that no
 * piece covered before.
 *
 * Pure: times are CLOCK_MONOTONIC, ns. For one caller at a time.
 */
#ifndef PYVGPU_CORE_BUSY_H
#define PYVGPU_CORE_BUSY_H

#include <stdint.h>

#define BUSY_PART_NS UINT64_C(4096) /* a bin has 64 parts */
#define BUSY_BIN_NS  (64 * BUSY_PART_NS)

enum { BUSY_BINS = 4096 }; /* 1.07 s */

#define BUSY_WHOLE 65536

struct busy_bin {
    uint64_t number; /* bin number since the clock's epoch */
    /* A bit for each part: */
    uint64_t parts;      /* something perhaps ran in it; */
    uint64_t given;      /* the device had work of this process all the time, */
    uint64_t certain;    /* and of a piece marked certain; */
    uint64_t joined;     /* there is no gap in it between pieces; */
    uint64_t ends;       /* a piece ended; */
    uint64_t unsure;     /* what ran was charged by a guess at what others had */
    uint32_t elapsed_ns; /* sum over pieces of the time that they ran in it */
    uint32_t taken_ns;   /* sum of the device time that they took, */
    uint32_t largest_ns; /* and the most of one of them */
    uint32_t counted_ns; /* the union's part of that */
    int64_t movable_ns;  /* what pieces had up to its end, as far as it may have been later */
    uint32_t rate; /* the part of the device's time that the process could have, of BUSY_WHOLE;
                      0: not known yet */
    int exact;     /* that is not a guess */
    int guessed;   /* the cost of some of it was unknown, */
    int mixed;     /* or is the mean of very different ones */
};

struct busy {
    uint64_t until_ns; /* the end of the last piece */
    int64_t total_ns;  /* the union's length as pieces were added */
    struct busy_bin bins[BUSY_BINS];
};

struct busy_piece {
    uint64_t from_ns; /* it ran between these two times, */
    uint64_t until_ns;
    uint64_t given_ns; /* and from here on the device had it, or earlier work, to do */
    int64_t taken_ns;  /* device time */
    int certain;       /* all the time from given_ns on was this process's */
    int joins;         /* the device went on from a piece before it without a gap */
    int guessed;
    int mixed;
    int unsure;
};

/* Add a piece. Returns by how much the union grows, ns. Pieces of several streams are taken to have
 * run at the same time only as far as they must have. */
int64_t busy_add(struct busy *busy, const struct busy_piece *piece);

/* Set the part of the device's time that the process could have in a bin. *exact*: computed from
 * what others had, not from their number. */
void busy_know(struct busy *busy, uint64_t number, uint32_t rate, int exact);

/* Finish a bin of which everything is known: returns it, and in *grown_ns* by how much the union
 * grows. *later_ns* carries over to the next bin the time that pieces took beyond what they could
 * have had so far. NULL: nothing ran in it, or its rate is not known. */
const struct busy_bin *busy_review(struct busy *busy, uint64_t number, int64_t *later_ns,
                                   int64_t *grown_ns);

/* The total length of the parts, ns. */
static inline int64_t busy_length(uint64_t parts)
{
    return (int64_t) __builtin_popcountll(parts) * (int64_t) BUSY_PART_NS;
}

#endif
