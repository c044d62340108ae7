/* SPDX-License-Identifier: Apache-2.0 */
/* extents.h -- address ranges of memory pools: those in use, and those known to be free.
 *
 * A range is free once its block was freed, in the order of the lane (a stream) that freed it.
 * Adjacent free ranges are merged within a region: the range of a block that was allocated where
 * nothing was known. Beyond a region's end the addresses may go on and the memory may not. Ranges
 * not known to be free are not listed: so a listed one can serve a request of its size. Knows no
 * CUDA and has no lock.
 */
#ifndef PYVGPU_CORE_EXTENTS_H
#define PYVGPU_CORE_EXTENTS_H

#include <stdint.h>

#define EXTENTS_LEVELS 16
#define EXTENTS_BINS   64

/* The order in which ranges were freed: numbers count up, and all to *done* are free for others. */
struct extents_lane {
    uint64_t done;
    unsigned extents; /* ranges that are free in it */
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
    uint64_t padding;        /* of its last block, behind its end */
    uint64_t block;          /* a block that was in it: where it began, */
    uint64_t block_bytes;    /* its requested size; 0: none is known */
    uint64_t block_end;      /* and where its padding ends */
    struct extent *previous; /* in its bin */
    struct extent *following;
    unsigned height;
    struct extent *next[];
};

struct extents {
    struct extent *next[EXTENTS_LEVELS];
    uint64_t draws;
    uint64_t regions; /* number of regions so far */
};

/* The lane of ranges that are free for all. */
extern struct extents_lane extents_any;

/* *bytes* from *start* on are in use now, and occupy at most *most*. 1 if they were known to be
 * free, so that *owner* did not grow; else 0. */
int extents_use(struct extents *extents, struct extents_owner *owner, uint64_t start,
                uint64_t bytes, uint64_t most);

/* The range in use that begins at *start*, or NULL. */
const struct extent *extents_find(struct extents *extents, uint64_t start);

/* Take that range out and copy it, without its links. 0 if there is none. */
int extents_take(struct extents *extents, uint64_t start, struct extent *taken);

/* Add a range that is free in the order of its lane; ignored if any of it is in use again. */
void extents_put(struct extents *extents, const struct extent *freed);

/* The owner took up to *most* of its free ranges for a request of *bytes*, and it is not known
 * which of them: the driver moves memory together, so only their sum counts. Large ranges are kept.
 * Returns how much of *most* was not there. */
uint64_t extents_shave(struct extents *extents, struct extents_owner *owner, uint64_t bytes,
                       uint64_t most);

/* Forget all free ranges of the owner. */
void extents_forget(struct extents *extents, struct extents_owner *owner);

/* The next free range after *extent* (NULL: the first) that can serve a request of *bytes*, for
 * which up to *most* are taken; or NULL. */
struct extent *extents_next_free(const struct extents_owner *owner, const struct extent *extent,
                                 uint64_t bytes, uint64_t most);

static inline int extents_is_done(const struct extent *extent)
{
    return extent->order <= extent->lane->done;
}

/* In a forked child: start empty, without freeing anything. */
void extents_after_fork(struct extents *extents);

#endif
