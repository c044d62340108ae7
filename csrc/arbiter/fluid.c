/* SPDX-License-Identifier: Apache-2.0 */
/* fluid.c -- serves backlogs and lends what is left over; see fluid.h. */
#include "arbiter/fluid.h"

#include <stdlib.h>

#define LONGEST_NS UINT64_C(10000000000) /* a backlog; whoever says more is not believed */
#define IDLE_NS    UINT64_C(10000000)    /* without work, after which a share is to lend */
#define WANT_NS    UINT64_C(100000000)   /* for so long who has waited is taken to want more */
#define RECENT_NS  UINT64_C(50000000)    /* what `used` is the mean of */

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t published_ns(uint32_t from, uint32_t to)
{
    int32_t units = (int32_t) (to - from); /* both wrap */

    return units > 0 ? least((uint64_t) units * WORK_UNIT_NS, LONGEST_NS) : 0;
}

void fluid_see(struct fluid_lane *lane, struct usage_work work)
{
    if (!lane->known) { /* its whole work in flight is new to us */
        lane->seen.begun = work.finished;
        lane->known = 1;
    }
    lane->backlog_ns += published_ns(lane->seen.begun, work.begun);
    lane->backlog_ns = least(lane->backlog_ns, LONGEST_NS);
    lane->seen = work;
}

static int compare_backlogs(const void *one, const void *other)
{
    uint64_t left = *(const uint64_t *) one;
    uint64_t right = *(const uint64_t *) other;

    return (left > right) - (left < right);
}

static unsigned collect(struct fluid_tenant *const *tenants, unsigned count, uint64_t *backlogs)
{
    unsigned busy = 0;

    for (unsigned i = 0; i < count; i++) {
        for (unsigned lane = 0; lane < tenants[i]->lane_count && busy < FLUID_BUSY; lane++) {
            if (tenants[i]->lanes[lane].backlog_ns)
                backlogs[busy++] = tenants[i]->lanes[lane].backlog_ns;
        }
    }
    return busy;
}

/* Up to which level the *time* fills all backlogs at once; what is left over when all are full
 * counts as if somebody were alone. */
static uint64_t find_level(uint64_t *backlogs, unsigned busy, uint64_t time)
{
    uint64_t level = 0;

    qsort(backlogs, busy, sizeof(*backlogs), compare_backlogs);
    for (unsigned i = 0; i < busy; i++) {
        uint64_t sharers = busy - i;
        uint64_t filled = (backlogs[i] - level) * sharers;

        if (filled > time)
            return level + time / sharers;
        time -= filled;
        level = backlogs[i];
    }
    return level + time;
}

static uint64_t serve_lane(struct fluid_lane *lane, uint64_t level)
{
    uint64_t served = least(lane->backlog_ns, level);

    lane->backlog_ns =
        least(lane->backlog_ns - served, published_ns(lane->seen.finished, lane->seen.begun));
    return served;
}

static int is_recent(uint64_t then, uint64_t now, uint64_t period)
{
    return then && now - then < period;
}

static void mark_active(struct fluid_tenant *tenant, uint64_t now)
{
    if (!is_recent(tenant->active_ns, now, IDLE_NS))
        tenant->woken_ns = now;
    tenant->active_ns = now;
}

static void serve_tenant(struct fluid_tenant *tenant, uint64_t level, uint64_t time, uint64_t now)
{
    uint64_t served = 0;
    uint64_t weight = least(time, RECENT_NS);

    for (unsigned lane = 0; lane < tenant->lane_count; lane++) {
        if (tenant->lanes[lane].backlog_ns) {
            mark_active(tenant, now);
            served += serve_lane(&tenant->lanes[lane], level);
        }
    }
    tenant->served_ns += served;
    tenant->used = (uint32_t) ((tenant->used * (RECENT_NS - weight) +
                                least(served, time) * CLOCK_WHOLE / time * weight) /
                               RECENT_NS);
}

/* Who waits has too little. Who waits no longer may have what was lent to thank for it, as long
 * as more than the share is used. */
static int wants_more(const struct fluid_tenant *tenant, uint64_t now)
{
    if (tenant->limit <= tenant->own)
        return 0;
    return is_recent(tenant->waited_ns, now, WANT_NS) ||
           (is_recent(tenant->active_ns, now, WANT_NS) && tenant->used > tenant->own);
}

/* What is kept for a container. All of its share from the tick on in which it has work again; only
 * who has used less for a while, and never waited, has some of it to lend. */
static uint32_t claim_of(const struct fluid_tenant *tenant, uint64_t now)
{
    if (!is_recent(tenant->active_ns, now, IDLE_NS) && !is_recent(tenant->waited_ns, now, IDLE_NS))
        return 0;
    if (is_recent(tenant->waited_ns, now, WANT_NS) || is_recent(tenant->woken_ns, now, WANT_NS))
        return tenant->own;
    return (uint32_t) least(tenant->own, tenant->used + tenant->used / 4 + CLOCK_WHOLE / 50);
}

/* The most that a container may be lent, for each CLOCK_WHOLE of its share. */
static uint64_t most_for(const struct fluid_tenant *tenant, uint64_t now)
{
    if (!tenant->own || !wants_more(tenant, now))
        return 0;
    return (uint64_t) (tenant->limit - tenant->own) * CLOCK_WHOLE / tenant->own;
}

/* Divide *spare* by shares, and what somebody may not have among the others. */
static uint32_t divide(struct fluid_tenant *const *tenants, unsigned count, uint64_t now,
                       uint64_t spare)
{
    uint64_t lent = 0;

    for (;;) {
        uint64_t next = UINT32_MAX; /* at which somebody has all that it may have */
        uint64_t sharing = 0;

        for (unsigned i = 0; i < count; i++) {
            uint64_t most = most_for(tenants[i], now);

            if (most > lent) {
                next = least(next, most);
                sharing += tenants[i]->own;
            }
        }
        if (!sharing || spare * CLOCK_WHOLE / sharing < next - lent)
            return (uint32_t) (sharing ? lent + spare * CLOCK_WHOLE / sharing : lent);
        spare -= (next - lent) * sharing / CLOCK_WHOLE;
        lent = next;
    }
}

static uint32_t lend(struct fluid_tenant *const *tenants, unsigned count, uint64_t now)
{
    uint64_t claimed = 0;

    for (unsigned i = 0; i < count; i++)
        claimed += wants_more(tenants[i], now) ? tenants[i]->own : claim_of(tenants[i], now);
    return claimed < CLOCK_WHOLE ? divide(tenants, count, now, CLOCK_WHOLE - claimed) : 0;
}

void fluid_tick(struct fluid *fluid, struct fluid_tenant *const *tenants, unsigned count,
                uint64_t now)
{
    uint64_t backlogs[FLUID_BUSY];
    uint64_t time = now - fluid->now_ns;
    uint64_t level;

    if (now <= fluid->now_ns)
        return;
    fluid->busy = collect(tenants, count, backlogs);
    level = find_level(backlogs, fluid->busy, time);
    if (level < time / FLUID_SLOWEST + 1)
        level = time / FLUID_SLOWEST + 1;
    for (unsigned i = 0; i < count; i++)
        serve_tenant(tenants[i], level, time, now);
    fluid->share_ns += least(level, time);
    fluid->now_ns = now;
    fluid->tenants = count;
    fluid->lent = lend(tenants, count, now);
}
