/* SPDX-License-Identifier: Apache-2.0 */
/* extents.c -- a skip list by address, with free ranges in bins by size; see extents.h. */
#include "core/extents.h"

#include <stdlib.h>

#define TRIES 64 /* ranges checked to find one that fits well */

struct extents_lane extents_any = {.done = UINT64_MAX};

/* The links to the first range at or behind *start*, and the range before it. */
struct place {
    struct extent **links[EXTENTS_LEVELS];
    struct extent *before;
};

static void find(struct extents *extents, uint64_t start, struct place *place)
{
    struct extent **next = extents->next;

    place->before = NULL;
    for (int level = EXTENTS_LEVELS - 1; level >= 0; level--) {
        while (next[level] && next[level]->start < start) {
            place->before = next[level];
            next = next[level]->next;
        }
        place->links[level] = &next[level];
    }
}

static uint64_t end_of(const struct extent *extent)
{
    return extent->start + extent->bytes;
}

/* --- bins ------------------------------------------------------------------------------------- */

static unsigned bin_of(uint64_t bytes)
{
    return bytes ? 63 - (unsigned) __builtin_clzll(bytes) : 0;
}

static void enter_bin(struct extent *extent)
{
    struct extent **bin = &extent->owner->bins[bin_of(extent->bytes)];

    extent->previous = NULL;
    extent->following = *bin;
    if (*bin)
        (*bin)->previous = extent;
    *bin = extent;
    extent->lane->extents++;
}

static void leave_bin(struct extent *extent)
{
    if (extent->previous)
        extent->previous->following = extent->following;
    else
        extent->owner->bins[bin_of(extent->bytes)] = extent->following;
    if (extent->following)
        extent->following->previous = extent->previous;
    extent->lane->extents--;
}

/* --- the list --------------------------------------------------------------------------------- */

/* One in four gets one level more. */
static unsigned draw_height(struct extents *extents)
{
    uint64_t drawn = ++extents->draws * UINT64_C(0x9e3779b97f4a7c15);
    unsigned height = 1;

    for (drawn ^= drawn >> 32; height < EXTENTS_LEVELS && !(drawn & 3); drawn >>= 2)
        height++;
    return height;
}

/* Insert *wanted* where *place* leads to; it must overlap nothing there. If malloc() fails the
 * range stays unknown, which is safe. */
static void insert_at(struct extents *extents, const struct place *place,
                      const struct extent *wanted)
{
    unsigned height = draw_height(extents);
    struct extent *extent = malloc(sizeof(*extent) + height * sizeof(extent->next[0]));

    if (!extent)
        return;
    *extent = *wanted;
    extent->height = height;
    for (unsigned level = 0; level < height; level++) {
        extent->next[level] = *place->links[level];
        *place->links[level] = extent;
    }
    if (extent->lane)
        enter_bin(extent);
}

static void insert(struct extents *extents, const struct extent *wanted)
{
    struct place place;

    find(extents, wanted->start, &place);
    insert_at(extents, &place, wanted);
}

/* Change a range in place: the order of the list stays. */
static void change(struct extent *extent, const struct extent *wanted)
{
    unsigned height = extent->height;

    if (extent->lane)
        leave_bin(extent);
    *extent = *wanted; /* without the links */
    extent->height = height;
    if (extent->lane)
        enter_bin(extent);
}

/* Take out the range that *place* leads to. */
static void delete(const struct place *place)
{
    struct extent *extent = *place->links[0];

    for (unsigned level = 0; level < extent->height; level++)
        *place->links[level] = extent->next[level];
    if (extent->lane)
        leave_bin(extent);
    free(extent);
}

static void delete_at(struct extents *extents, uint64_t start)
{
    struct place place;

    find(extents, start, &place);
    delete(&place);
}

/* --- used ------------------------------------------------------------------------------------- */

/* The padding of a free range is used from *start* on. */
static void end_padding(struct extent *extent, uint64_t start)
{
    if (start - end_of(extent) < extent->padding)
        extent->padding = start - end_of(extent);
    if (extent->block_end > start)
        extent->block_bytes = 0;
}

/* Take out all that overlaps the range: blocks whose free was not seen, and free ranges that are in
 * use now. */
static void clear(struct extents *extents, uint64_t start, uint64_t end)
{
    struct place place;

    find(extents, start, &place);
    if (place.before && end_of(place.before) > start)
        delete_at(extents, place.before->start);
    find(extents, start, &place);
    while (*place.links[0] && (*place.links[0])->start < end)
        delete(&place);
    if (place.before && place.before->lane)
        end_padding(place.before, start);
}

/* Cut off free ranges between *start* and *end*: a block's padding may reach up to there. */
static void cut(struct extents *extents, uint64_t start, uint64_t end)
{
    struct place place;
    struct extent rest;

    find(extents, start, &place);
    while (*place.links[0] && (*place.links[0])->lane && (*place.links[0])->start < end) {
        rest = **place.links[0];
        delete(&place);
        if (end_of(&rest) <= end)
            continue;
        rest.bytes = end_of(&rest) - end;
        rest.start = end;
        if (rest.block < end)
            rest.block_bytes = 0;
        insert(extents, &rest);
        return;
    }
}

/* A block takes the start of a free range, the usual case: the rest begins behind it. */
static void use_start(struct extents *extents, struct place *place, const struct extent *used,
                      uint64_t most)
{
    struct extent *extent = *place->links[0];
    struct extent rest = *extent;

    if (rest.bytes <= most) {
        change(extent, used);
        return;
    }
    rest.start += most;
    rest.bytes -= most;
    if (rest.block < rest.start)
        rest.block_bytes = 0;
    change(extent, &rest);
    insert_at(extents, place, used);
}

/* A block takes the middle of a free range. */
static void use_middle(struct extents *extents, struct extent *extent, const struct extent *used,
                       uint64_t most)
{
    struct extent rest = *extent;
    struct extent part = *extent;

    part.bytes = used->start - part.start;
    part.padding = 0;
    if (part.block_end > used->start)
        part.block_bytes = 0;
    change(extent, &part);
    insert(extents, used);
    if (end_of(&rest) <= used->start + most)
        return;
    rest.bytes = end_of(&rest) - (used->start + most);
    rest.start = used->start + most;
    if (rest.block < rest.start)
        rest.block_bytes = 0;
    insert(extents, &rest);
}

int extents_use(struct extents *extents, struct extents_owner *owner, uint64_t start,
                uint64_t bytes, uint64_t most)
{
    struct extent used = {.start = start, .bytes = bytes, .owner = owner};
    struct extent *around;
    struct place place;

    find(extents, start, &place);
    around = *place.links[0];
    if (!around || around->start != start)
        around = place.before;
    if (!around || !around->lane || around->owner != owner || end_of(around) < start + bytes) {
        clear(extents, start, start + bytes);
        cut(extents, start + bytes, start + most);
        used.region = ++extents->regions;
        insert(extents, &used);
        return 0;
    }
    used.region = around->region;
    if (around == place.before)
        use_middle(extents, around, &used, most);
    else
        use_start(extents, &place, &used, most);
    if (end_of(&used) < start + most)
        cut(extents, end_of(&used), start + most);
    return 1;
}

/* --- free ------------------------------------------------------------------------------------- */

const struct extent *extents_find(struct extents *extents, uint64_t start)
{
    const struct extent *found;
    struct place place;

    find(extents, start, &place);
    found = *place.links[0];
    return found && found->start == start && !found->lane ? found : NULL;
}

int extents_take(struct extents *extents, uint64_t start, struct extent *taken)
{
    const struct extent *found;
    struct place place;

    find(extents, start, &place);
    found = *place.links[0];
    if (!found || found->start != start || found->lane)
        return 0;
    *taken = *found;
    delete(&place);
    return 1;
}

static int adjoin(const struct extent *first, const struct extent *second)
{
    return first->lane && second->lane && first->owner == second->owner &&
           first->region == second->region && second->start - end_of(first) <= first->padding &&
           (first->lane == second->lane || extents_is_done(first) || extents_is_done(second));
}

/* The joined range is free when both are, in the lane of the one that is not done. */
static void join(struct extent *extent, const struct extent *other)
{
    const struct extent *last = extent->start > other->start ? extent : other;
    uint64_t end = end_of(last);

    extent->padding = last->padding;
    if (extent->start > other->start)
        extent->start = other->start;
    extent->bytes = end - extent->start;
    if (extent->block_bytes < other->block_bytes ||
        (extent->block_bytes == other->block_bytes && extent->block < other->block)) {
        extent->block = other->block;
        extent->block_bytes = other->block_bytes;
        extent->block_end = other->block_end;
    }
    if (extent->lane == other->lane) {
        if (extent->order < other->order)
            extent->order = other->order;
    } else if (extents_is_done(extent)) {
        extent->lane = other->lane;
        extent->order = other->order;
    }
}

void extents_put(struct extents *extents, const struct extent *freed)
{
    struct extent whole = *freed;
    struct extent *behind;
    struct place place;

    find(extents, freed->start, &place);
    behind = *place.links[0];
    if ((place.before && end_of(place.before) > freed->start) ||
        (behind && behind->start < end_of(freed)))
        return;
    if (behind && !adjoin(&whole, behind))
        behind = NULL;
    if (behind)
        join(&whole, behind);
    if (place.before && adjoin(place.before, &whole)) {
        join(&whole, place.before);
        change(place.before, &whole);
        if (behind)
            delete(&place);
    } else if (behind) {
        change(behind, &whole);
    } else {
        insert_at(extents, &place, &whole);
    }
}

/* Take *bytes* off the end of a free range, or all of it; returns how many were taken. */
static uint64_t shorten(struct extents *extents, const struct extent *extent, uint64_t bytes)
{
    struct extent rest = *extent;
    uint64_t taken = rest.bytes < bytes ? rest.bytes : bytes;

    delete_at(extents, rest.start);
    rest.bytes -= taken;
    rest.block_bytes = 0;
    rest.padding = 0;
    if (rest.bytes)
        insert(extents, &rest);
    return taken;
}

/* The smallest range that serves a request, among the first ones; NULL if there is none. */
static const struct extent *find_fitting(const struct extents_owner *owner, uint64_t bytes,
                                         uint64_t most)
{
    const struct extent *best = extents_next_free(owner, NULL, bytes, most);
    const struct extent *extent = best;

    for (unsigned tries = 0; extent && tries < TRIES; tries++) {
        if (extent->bytes < best->bytes)
            best = extent;
        extent = extents_next_free(owner, extent, bytes, most);
    }
    return best;
}

uint64_t extents_shave(struct extents *extents, struct extents_owner *owner, uint64_t bytes,
                       uint64_t most)
{
    const struct extent *fitting = find_fitting(owner, bytes, most);

    if (fitting)
        most -= shorten(extents, fitting, most);
    for (int bin = EXTENTS_BINS - 1; bin >= 0 && most && !fitting; bin--)
        while (owner->bins[bin] && most)
            most -= shorten(extents, owner->bins[bin], most);
    return fitting ? 0 : most;
}

void extents_forget(struct extents *extents, struct extents_owner *owner)
{
    for (unsigned bin = 0; bin < EXTENTS_BINS; bin++)
        while (owner->bins[bin])
            delete_at(extents, owner->bins[bin]->start);
}

struct extent *extents_next_free(const struct extents_owner *owner, const struct extent *extent,
                                 uint64_t bytes, uint64_t most)
{
    unsigned bin = extent ? bin_of(extent->bytes) : bin_of(bytes);
    struct extent *next = extent ? extent->following : owner->bins[bin];

    for (;;) {
        while (next && next->bytes < most && next->block_bytes < bytes)
            next = next->following;
        if (next || ++bin == EXTENTS_BINS)
            return next;
        next = owner->bins[bin];
    }
}

void extents_after_fork(struct extents *extents)
{
    *extents = (struct extents) {.draws = 0};
}
