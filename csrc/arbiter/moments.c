/* SPDX-License-Identifier: Apache-2.0 */
/* moments.c -- sweeps over the work times of processes; see moments.h. */
#include "arbiter/moments.h"

#include <stdlib.h>

enum {
    MOST = 64, /* processes with work in the period; if there are more, none counts as alone */
    SPANS = 3, /* of work per process: between its idle times, and around them */
};

struct edge {
    uint64_t at_ns;
    int change;     /* of the number of processes with work */
    unsigned index; /* of the process */
};

struct sweep {
    struct edge edges[MOST * SPANS * 2];
    unsigned edge_count;
    struct lending_container *tenants[MOST];
    uint32_t slots[MOST];
    unsigned count;
};

struct moments_idle moments_idle(uint64_t word, uint64_t now)
{
    uint64_t length = word & IDLE_LENGTH_MASK;
    struct moments_idle idle = {region_moment(word, IDLE_LENGTH_BITS, now), 0};

    if (!idle.from_ns)
        return idle;
    idle.until_ns = length == IDLE_LENGTH_MASK ? now : idle.from_ns + length * WORK_UNIT_NS;
    idle.until_ns = idle.until_ns < now ? idle.until_ns : now;
    return idle;
}

static void add_work(struct sweep *sweep, uint64_t from_ns, uint64_t until_ns)
{
    if (from_ns >= until_ns)
        return;
    sweep->edges[sweep->edge_count++] = (struct edge) {from_ns, 1, sweep->count};
    sweep->edges[sweep->edge_count++] = (struct edge) {until_ns, -1, sweep->count};
}

/* 0: there are too many processes. */
static int add_lane(struct sweep *sweep, struct lending_container *tenant, uint32_t slot,
                    uint64_t begin_ns, uint64_t seen_ns, uint64_t end_ns)
{
    const struct lending_process *lane = &tenant->lanes[slot];
    struct moments_idle first = moments_idle(lane->idle[0], end_ns);
    struct moments_idle second = moments_idle(lane->idle[1], end_ns);
    unsigned before = sweep->edge_count;

    if (!lane->known || lane->still >= LENDING_STILL)
        return 1;
    if (sweep->count == MOST)
        return 0;
    if (first.from_ns > second.from_ns) {
        struct moments_idle earlier = second;

        second = first;
        first = earlier;
    }
    if (first.until_ns > begin_ns) {
        add_work(sweep, begin_ns, first.from_ns);
        begin_ns = first.until_ns;
    }
    if (second.until_ns > begin_ns) {
        add_work(sweep, begin_ns, second.from_ns);
        begin_ns = second.until_ns;
    }
    add_work(sweep, begin_ns, lane->still ? seen_ns : end_ns);
    if (sweep->edge_count == before)
        return 1;
    sweep->tenants[sweep->count] = tenant;
    sweep->slots[sweep->count++] = slot;
    return 1;
}

static int compare_edges(const void *one, const void *other)
{
    const struct edge *left = one;
    const struct edge *right = other;

    if (left->at_ns != right->at_ns)
        return left->at_ns < right->at_ns ? -1 : 1;
    return left->change - right->change;
}

static void note(struct lending_container *tenant, uint32_t slot, uint64_t from_ns,
                 uint64_t until_ns)
{
    if (from_ns >= until_ns)
        return;
    for (unsigned i = 0; i < LENDING_MOMENTS; i++) {
        struct clock_alone *moment = &tenant->moments[i];

        if (moment->slot != slot + 1 || moment->from_ns > until_ns || moment->until_ns < from_ns)
            continue;
        moment->from_ns = moment->from_ns < from_ns ? moment->from_ns : from_ns;
        moment->until_ns = moment->until_ns > until_ns ? moment->until_ns : until_ns;
        return;
    }
    tenant->moment = (tenant->moment + 1) % LENDING_MOMENTS;
    tenant->moments[tenant->moment] = (struct clock_alone) {from_ns, until_ns, slot + 1, 0};
}

/* A process counts as alone from when no other one had work, even if it began its own later. */
static void walk(const struct sweep *sweep, uint64_t begin_ns, uint64_t end_ns)
{
    int working[MOST] = {0};
    unsigned several = 0;         /* processes with work now */
    unsigned owner = MOST;        /* the one that had work last, alone; MOST: none */
    uint64_t from_ns = begin_ns;  /* no other process had work from here on */
    uint64_t quiet_ns = begin_ns; /* when a process last ran out of work */

    for (unsigned i = 0; i < sweep->edge_count; i++) {
        const struct edge *edge = &sweep->edges[i];

        working[edge->index] += edge->change;
        several += (unsigned) edge->change;
        if (edge->change < 0) {
            quiet_ns = edge->at_ns;
            if (several == 1) { /* one of two has ended: the other is alone from here on */
                from_ns = edge->at_ns;
                for (owner = 0; !working[owner];)
                    owner++;
            }
        } else if (several == 1 && owner != edge->index) {
            if (owner != MOST)
                note(sweep->tenants[owner], sweep->slots[owner], from_ns, edge->at_ns);
            from_ns = quiet_ns;
            owner = edge->index;
        } else if (several == 2) {
            note(sweep->tenants[owner], sweep->slots[owner], from_ns, edge->at_ns);
            owner = MOST;
        }
    }
    if (owner != MOST)
        note(sweep->tenants[owner], sweep->slots[owner], from_ns, end_ns);
}

void moments_find(struct lending_container *const *tenants, unsigned count, uint64_t begin_ns,
                  uint64_t seen_ns, uint64_t end_ns)
{
    struct sweep sweep;

    sweep.edge_count = sweep.count = 0;
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < tenants[i]->lane_count; j++)
            if (!add_lane(&sweep, tenants[i], j, begin_ns, seen_ns, end_ns))
                return;
    qsort(sweep.edges, sweep.edge_count, sizeof(*sweep.edges), compare_edges);
    walk(&sweep, begin_ns, end_ns);
}
