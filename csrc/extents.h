/* SPDX-License-Identifier: Apache-2.0 */
/* extents.h -- the address ranges of memory pools that are in use, and those known to be free.
 *
 * A range is free from the free of a block on, in the order of the lane (a stream) that freed it.
 * Adjoining free ranges are one, within a region: what one block was given when nothing was known
 * of its place. Beyond that the addresses may go on and the memory may not. What is not known to be
 * free is not here: so a range that is here can serve a request of its size. It knows no CUDA and
 * has no lock.
 */
#ifndef PYVGPU_EXTENTS_H
#define PYVGPU_EXTENTS_H

#include <stdint.h>

#define EXTENTS_LEVELS 16
#define EXTENTS_BINS   64

/* The order in which ranges were freed: numbers count up, and all to *done* are free for others. */
struct extents_lane {
    uint64_t done;
    unsigned extents; /* that are free in it */
};

/* A pool. */
struct extents_owner {
    struct extent *bins[EXTENTS_BINS]; /* its free ranges, by the highest bit of their size */
};

struct extent {
    uint64_t start;
    uint64_t bytes;
    struct extents_owner *owner;
    struct extents_lane *lane; /* NULL: in use */
    uint64_t region;
    uint64_t order;          /* of its free in that lane */
    uint64_t padding;        /* behind its end, of its last block */
    uint64_t block;          /* a block that was in it: where it began, */
    uint64_t block_bytes;    /* what was asked for; 0: none is known */
    uint64_t block_end;      /* and where its padding ends */
    struct extent *previous; /* in its bin */
    struct extent *following;
    unsigned height;
    struct extent *next[];
};

struct extents {
    struct extent *next[EXTENTS_LEVELS];
    uint64_t draws;
    uint64_t regions; /* that there ever were */
};

/* The lane of what is free for all. */
extern struct extents_lane extents_any;

/* *bytes* from *start* on are in use, and at most *most* are taken for that. 1 if they were known
 * to be free, so that *owner* did not grow; else 0. */
int extents_use(struct extents *extents, struct extents_owner *owner, uint64_t start,
                uint64_t bytes, uint64_t most);

/* The range in use that begins at *start*, or NULL. */
const struct extent *extents_find(struct extents *extents, uint64_t start);

/* Take that out and copy it, without its links. 0 if there is none. */
int extents_take(struct extents *extents, uint64_t start, struct extent *taken);

/* A range is free in the order of *lane*; not, if any of it is in use already. */
void extents_put(struct extents *extents, const struct extent *freed);

/* The owner took up to *most* of its free ranges for a request of *bytes*, and it is not known of
 * which: the driver moves memory together, so that their sum counts. Large ranges are kept. Returns
 * how much of *most* was not there. */
uint64_t extents_shave(struct extents *extents, struct extents_owner *owner, uint64_t bytes,
                       uint64_t most);

/* Nothing is known to be free any more. */
void extents_forget(struct extents *extents, struct extents_owner *owner);

/* A free range behind *extent* (NULL: the first) that serves a request of *bytes*, for which up to
 * *most* are taken; or NULL. */
struct extent *extents_next_free(const struct extents_owner *owner, const struct extent *extent,
                                 uint64_t bytes, uint64_t most);

static inline int extents_is_done(const struct extent *extent)
{
    return extent->order <= extent->lane->done;
}

/* Start anew without giving anything back, in the child of a fork. */
void extents_after_fork(struct extents *extents);

#endif
