/* SPDX-License-Identifier: Apache-2.0 */
/* others.c -- spreads the device time of processes over cells of time; see others.h. */
#include "arbiter/others.h"
#include "core/number.h"

#define CELL_NS ((uint64_t) OTHERS_CELL_NS)
#define PART_NS (CELL_NS / 64)
#define LOST_NS (OTHERS_CELLS * CELL_NS) /* nothing older is kept */

enum {
    GUESS = 1,   /* the container's time in the cell is a guess */
    SEVERAL = 2, /* several of its processes had it */
};

static unsigned place_of(uint64_t cell)
{
    return (unsigned) (cell % OTHERS_CELLS);
}

/* *now* less *ns*, at least 0. */
static uint64_t before_by(uint64_t now, uint64_t ns)
{
    return now > ns ? now - ns : 0;
}

void others_begin(struct others_container *tenant, uint64_t before, uint64_t now)
{
    uint64_t last = now / CELL_NS;
    uint64_t cell = before / CELL_NS + 1;

    if (cell + OTHERS_CELLS <= last)
        cell = last - OTHERS_CELLS + 1;
    for (; cell <= last; cell++) {
        unsigned place = place_of(cell);

        tenant->at_work[place] = 0;
        tenant->had[place] = 0;
        tenant->owner[place] = 0;
        tenant->marks[place] = 0;
    }
    tenant->until_ns = now;
}

/* --- cells ------------------------------------------------------------------------------------ */

/* The parts of a cell whose middle lies between two times. */
static uint64_t parts_of(uint64_t cell, uint64_t from_ns, uint64_t until_ns)
{
    uint64_t begin = cell * CELL_NS;
    uint64_t first = from_ns > begin ? (from_ns - begin + PART_NS / 2) / PART_NS : 0;
    uint64_t end = until_ns > begin ? (until_ns - begin + PART_NS / 2) / PART_NS : 0;

    first = least(first, 64);
    end = least(end, 64);
    if (first >= end)
        return 0;
    return (end - first == 64 ? UINT64_MAX : (UINT64_C(1) << (end - first)) - 1) << first;
}

static uint64_t length_of(uint64_t parts)
{
    return (uint64_t) __builtin_popcountll(parts) * PART_NS;
}

/* The container was at work between these times. */
static void mark(struct others_container *tenant, unsigned number, uint64_t from_ns,
                 uint64_t until_ns, int sure)
{
    for (uint64_t cell = from_ns / CELL_NS; cell * CELL_NS < until_ns; cell++) {
        unsigned place = place_of(cell);

        tenant->at_work[place] |= parts_of(cell, from_ns, until_ns);
        if (!sure)
            tenant->marks[place] |= GUESS;
        if (tenant->owner[place] && tenant->owner[place] != number + 1)
            tenant->marks[place] |= SEVERAL;
        tenant->owner[place] = (uint16_t) (number + 1);
    }
}

void others_seat(struct others *others, struct others_container *const *tenants, unsigned count)
{
    for (unsigned i = 0; i < others->span_count; i++) {
        const struct others_span *span = &others->spans[i];

        for (unsigned j = 0; j < count; j++)
            if (tenants[j] == span->tenant)
                mark(span->tenant, span->number, span->from_ns, span->until_ns, 0);
    }
    others->span_count = 0;
}

/* Assign the time that a span had: as much as possible to the parts where its container was at work
 * alone, the rest evenly to the other parts. */
static void spread(const struct others *others, const struct others_span *span)
{
    uint64_t alone = 0, beside = 0;
    double rate;

    for (uint64_t cell = span->from_ns / CELL_NS; cell * CELL_NS < span->until_ns; cell++) {
        uint64_t parts = parts_of(cell, span->from_ns, span->until_ns);

        alone += length_of(parts & ~others->several[place_of(cell)]);
        beside += length_of(parts & others->several[place_of(cell)]);
    }
    if (!beside || span->had_ns <= alone)
        return;
    rate = (double) least(span->had_ns - alone, beside) / (double) beside;
    for (uint64_t cell = span->from_ns / CELL_NS; cell * CELL_NS < span->until_ns; cell++) {
        uint64_t parts = parts_of(cell, span->from_ns, span->until_ns);

        parts &= others->several[place_of(cell)];
        span->tenant->had[place_of(cell)] += (uint32_t) (rate * (double) length_of(parts));
    }
}

/* --- what processes publish ------------------------------------------------------------------- */

/* The points of a process since its last one, ordered by time. */
static unsigned sort(struct progress_point *points, const struct others_process *lane,
                     const uint64_t *words, uint64_t now)
{
    unsigned count = 0;

    for (unsigned i = 0; words && i < PROGRESS_WORDS; i++) {
        struct progress_point point = progress_point(words[i], now);
        unsigned at = count;

        if (point.at_ns <= lane->at_ns || now - point.at_ns >= LOST_NS)
            continue;
        for (; at && points[at - 1].at_ns > point.at_ns; at--)
            points[at] = points[at - 1];
        points[at] = point;
        count++;
    }
    return count;
}

static void take(struct others *others, struct others_container *tenant,
                 struct others_process *lane, unsigned number, const struct progress_point *point,
                 uint64_t now)
{
    uint64_t from = latest(lane->at_ns, before_by(now, LOST_NS - CELL_NS));
    uint64_t ns = (uint64_t) (uint32_t) (point->done - lane->done) * WORK_UNIT_NS;

    if (!point->begins && lane->at_ns && from < point->at_ns) {
        ns = (uint64_t) ((double) ns * (double) (point->at_ns - from) /
                         (double) (point->at_ns - lane->at_ns));
        mark(tenant, number, from, point->at_ns, point->sure && others->span_count < OTHERS_SPANS);
        if (others->span_count < OTHERS_SPANS)
            others->spans[others->span_count++] =
                (struct others_span) {tenant, from, point->at_ns, ns, number};
    }
    lane->at_ns = point->at_ns;
    lane->done = point->done;
}

void others_see(struct others *others, struct others_container *tenant, struct others_process *lane,
                unsigned number, const uint64_t *words, int has_work, uint64_t before, uint64_t now)
{
    struct progress_point points[PROGRESS_WORDS];
    unsigned count = sort(points, lane, words, now);
    uint64_t until = words ? before_by(now, PROGRESS_WAIT_NS) : now;

    for (unsigned i = 0; i < count; i++)
        take(others, tenant, lane, number, &points[i], now);
    if (!lane->known_ns)
        lane->known_ns = before;
    lane->known_ns = latest(lane->known_ns, count ? lane->at_ns : 0);
    if (has_work && lane->known_ns < until) {
        mark(tenant, number, latest(lane->known_ns, before_by(now, LOST_NS - CELL_NS)), until, 0);
        lane->known_ns = until;
    } else if (!has_work) {
        lane->known_ns = now;
    }
    tenant->until_ns = least(tenant->until_ns, lane->known_ns);
}

/* --- what was beside each --------------------------------------------------------------------- */

static void find_several(struct others *others, struct others_container *const *tenants,
                         unsigned count, uint64_t until_ns)
{
    uint64_t cell = latest(others->masked_ns, before_by(until_ns, LOST_NS)) / CELL_NS;

    for (; cell * CELL_NS < until_ns; cell++) {
        uint64_t once = 0, twice = 0;

        for (unsigned i = 0; i < count; i++) {
            twice |= once & tenants[i]->at_work[place_of(cell)];
            once |= tenants[i]->at_work[place_of(cell)];
        }
        others->several[place_of(cell)] = twice;
    }
    others->masked_ns = until_ns;
}

/* Spread the spans that are known as a whole. Returns the time up to which no span is left. */
static uint64_t spread_all(struct others *others, uint64_t until_ns)
{
    uint64_t known = until_ns;
    unsigned left = 0;

    for (unsigned i = 0; i < others->span_count; i++) {
        const struct others_span *span = &others->spans[i];

        if (span->until_ns <= until_ns) {
            spread(others, span);
        } else {
            known = least(known, span->from_ns);
            others->spans[left++] = *span;
        }
    }
    others->span_count = left;
    return known;
}

/* A word of clock_file.others: the time that others had while the container *own* was at work. */
static uint32_t sum(const struct others *others, struct others_container *const *tenants,
                    unsigned count, unsigned own, unsigned place)
{
    uint64_t at_work = tenants[own]->at_work[place];
    uint64_t several = length_of(others->several[place]);
    uint64_t had = 0;
    int unsure = tenants[own]->marks[place] & SEVERAL;

    if (!at_work)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        if (i == own)
            continue;
        had += tenants[i]->had[place];
        if (tenants[i]->at_work[place] & at_work)
            unsure |= tenants[i]->marks[place] & GUESS;
    }
    if (several)
        had = had * length_of(at_work & others->several[place]) / several;
    return (uint32_t) least(had, length_of(at_work)) |
           (uint32_t) __builtin_popcountll(at_work) << OTHERS_PARTS_SHIFT |
           (unsure ? OTHERS_UNSURE : 0);
}

void others_find(struct others *others, struct others_container *const *tenants, unsigned count)
{
    uint64_t until = UINT64_MAX;
    uint64_t known;

    for (unsigned i = 0; i < count; i++)
        until = least(until, tenants[i]->until_ns);
    if (!count || until <= others->known_ns)
        return;
    find_several(others, tenants, count, until);
    known = latest(spread_all(others, until), others->known_ns);
    for (unsigned i = 0; i < count; i++)
        for (uint64_t cell = latest(others->known_ns, before_by(known, LOST_NS)) / CELL_NS;
             (cell + 1) * CELL_NS <= known; cell++)
            tenants[i]->beside[place_of(cell)] = sum(others, tenants, count, i, place_of(cell));
    others->known_ns = known;
}
