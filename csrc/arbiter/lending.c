/* SPDX-License-Identifier: Apache-2.0 */
/* lending.c -- serves the backlogs of a device; see lending.h. loans.c lends unused shares. */
#include "arbiter/lending.h"
#include "arbiter/loans.h"
#include "arbiter/moments.h"
#include "core/number.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_NS    UINT64_C(10000000000) /* longest backlog that is believed; more is cut */
#define RECENT_NS     UINT64_C(50000000)    /* over which `used` is averaged */
#define POINT_NS      UINT64_C(100000)      /* least distance of points of a clock */
#define STEPS         16                    /* of a tick */
#define ALL_STEPS     ((UINT32_C(1) << STEPS) - 1)
#define CREDIT_LASTS  4 /* scans of a process */
#define SILENCE_LASTS 16
#define NEWS_LAST     16 /* scans */
#define LOOKBACK_NS   UINT64_C(10000000)
#define WOKEN_NS      UINT64_C(2000000)    /* longer than the work that is paid for at once */
#define AHEAD_NS      UINT64_C(2000000000) /* the most of ahead_ns: longer than most launches */

static uint64_t published_ns(uint32_t from, uint32_t to)
{
    int32_t units = (int32_t) (to - from); /* both wrap */

    return units > 0 ? least((uint64_t) units * WORK_UNIT_NS, LONGEST_NS) : 0;
}

/* A single unfinished unit is prepaid credit that may never be used. A process that has published
 * nothing for long, and should be done, may have been stopped or killed. */
static int has_nothing(const struct lending_process *lane)
{
    uint32_t ahead = lane->seen.begun - lane->seen.finished;

    return ahead == 0 || (!lane->backlog_ns && !lane->fresh_ns &&
                          lane->unchanged >= (ahead == 1 ? CREDIT_LASTS : SILENCE_LASTS));
}

/* Remove work that was published as begun and then revoked. */
static void take_back(struct lending_process *lane, uint64_t ns)
{
    uint64_t fresh = least(lane->fresh_ns, ns);

    lane->fresh_ns -= fresh;
    lane->backlog_ns -= least(lane->backlog_ns, ns - fresh);
}

void lending_see(struct lending_process *lane, struct usage_work work, const uint64_t *idle)
{
    static const uint64_t none[2];

    if (!lane->known) { /* all of its work in flight is new to us */
        lane->seen.begun = work.finished;
        lane->known = 1;
    }
    lane->still = has_nothing(lane) && work.begun == lane->seen.begun ? lane->still + 1 : 0;
    lane->unchanged = work.begun == lane->seen.begun && work.finished == lane->seen.finished
                          ? lane->unchanged + 1
                          : 0;
    lane->fresh_ns = least(lane->fresh_ns + published_ns(lane->seen.begun, work.begun), LONGEST_NS);
    take_back(lane, published_ns(work.begun, lane->seen.begun));
    lane->seen = work;
    memcpy(lane->idle, idle ? idle : none, sizeof(lane->idle));
}

static int says_idle(uint64_t word)
{
    return word && (word & IDLE_LENGTH_MASK) == IDLE_LENGTH_MASK;
}

int lending_is_idle(const struct lending_process *lane)
{
    return says_idle(lane->idle[0]) || says_idle(lane->idle[1]) || has_nothing(lane);
}

/* Whether it has published unfinished work. A process that waits for its work publishes the end at
 * once; one that does not wait may publish nothing for long. */
static int is_at_work(const struct lending_process *lane, struct usage_work work,
                      uint64_t passed_ns)
{
    if (work.begun - work.finished <= 1) /* one unit is prepaid credit */
        return 0;
    return work.begun != lane->seen.begun || work.finished != lane->seen.finished ||
           lane->unchanged < CREDIT_LASTS || lane->backlog_ns + lane->fresh_ns > passed_ns;
}

int lending_has_work(const struct lending_process *lane, struct usage_work work,
                     const uint64_t *idle, uint64_t passed_ns, uint64_t now)
{
    if (idle && (says_idle(idle[0]) || says_idle(idle[1])))
        return 0;
    if (is_at_work(lane, work, passed_ns))
        return 1;
    /* Work that was paid for earlier may have begun: that is not published. */
    for (unsigned i = 0; idle && i < 2; i++) {
        uint64_t until = moments_idle(idle[i], now).until_ns;

        if (until && now - until < WOKEN_NS)
            return 1;
    }
    return 0;
}

/* A lane with work in this tick. The tick is served step by step, so that neighbours that only
 * overlap for a part of it slow each other down for that part. */
struct flow {
    struct lending_process *lane;
    struct lending_container *tenant;
    unsigned step;    /* in which its fresh work began */
    uint32_t working; /* a bit for each step in which it did not report to be idle */
    uint64_t served_ns;
};

struct tick {
    uint64_t begin_ns;
    uint64_t time_ns;
    uint64_t passed_ns; /* of time_ns */
    struct lending_container *const *tenants;
    unsigned tenant_count;
    struct flow flows[LENDING_BUSY];
    struct flow *order[LENDING_BUSY];
    unsigned busy;
};

static unsigned step_of(const struct tick *tick, uint64_t when)
{
    if (when <= tick->begin_ns)
        return 0;
    return (unsigned) least((when - tick->begin_ns) * STEPS / tick->time_ns, STEPS - 1);
}

/* A program can publish anything about its work, for any number of processes. So its container is
 * believed to have begun no more than its share of the time, with a quarter more for wrong guesses,
 * and some launches ahead. */
static void limit_to_share(struct lending_container *tenant, uint64_t time_ns)
{
    uint64_t rate = tenant->limit ? tenant->limit + tenant->limit / 4 : CLOCK_WHOLE;
    unsigned count = 0;
    uint64_t left;

    for (unsigned i = 0; i < tenant->lane_count; i++)
        count += tenant->lanes[i].fresh_ns != 0;
    tenant->ahead_ns -= least(tenant->ahead_ns, time_ns * rate / CLOCK_WHOLE);
    left = AHEAD_NS - tenant->ahead_ns;
    for (unsigned i = 0; i < tenant->lane_count; i++) {
        struct lending_process *lane = &tenant->lanes[i];

        if (lane->fresh_ns) {
            lane->fresh_ns = least(lane->fresh_ns, left / count--);
            left -= lane->fresh_ns;
        }
    }
    tenant->ahead_ns = AHEAD_NS - left;
}

/* Apply an idle time that the process published: it had no work then, and the end of that time is
 * when its latest work began. */
static void take_word(const struct tick *tick, struct flow *flow, uint64_t word)
{
    uint64_t end = tick->begin_ns + tick->time_ns;
    struct moments_idle idle = moments_idle(word, end);

    if (idle.until_ns <= tick->begin_ns)
        return;
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t middle = tick->begin_ns + tick->time_ns * (2 * step + 1) / (2 * STEPS);

        if (middle >= idle.from_ns && middle < idle.until_ns)
            flow->working &= ~(UINT32_C(1) << step);
    }
    if (idle.until_ns < end)
        flow->step = step_of(tick, idle.until_ns);
}

static void collect(struct tick *tick, struct lending_container *tenant)
{
    unsigned before = tick->busy;

    limit_to_share(tenant, tick->time_ns);
    for (unsigned i = 0; i < tenant->lane_count && tick->busy < LENDING_BUSY; i++) {
        struct lending_process *lane = &tenant->lanes[i];
        struct flow *flow = &tick->flows[tick->busy];

        if (!lane->backlog_ns && !lane->fresh_ns)
            continue;
        *flow = (struct flow) {lane, tenant, step_of(tick, tenant->bought_ns), ALL_STEPS, 0};
        take_word(tick, flow, lane->idle[0]);
        take_word(tick, flow, lane->idle[1]);
        tick->busy++;
    }
    tenant->busy = tick->busy - before;
}

static int compare_backlogs(const void *one, const void *other)
{
    uint64_t left = (*(struct flow *const *) one)->lane->backlog_ns;
    uint64_t right = (*(struct flow *const *) other)->lane->backlog_ns;

    return (left > right) - (left < right);
}

static void serve(struct flow *flow, uint64_t level)
{
    uint64_t served = least(flow->lane->backlog_ns, level);

    flow->lane->backlog_ns -= served;
    flow->served_ns += served;
}

static void add_point(struct lending_container *tenant, uint64_t at_ns)
{
    struct clock_sample point = {at_ns, tenant->share_ns};
    unsigned count = tenant->point_count;

    if (count && (at_ns - tenant->points[count - 1].at_ns < POINT_NS || count == LENDING_POINTS))
        tenant->points[count - 1] = point;
    else
        tenant->points[tenant->point_count++] = point;
}

/* Let *time* pass with the device divided among *running* processes. A container with none of them
 * is treated as if it had one more. */
static void pass(struct tick *tick, uint64_t time, unsigned running)
{
    for (unsigned i = 0; time && i < tick->tenant_count; i++) {
        struct lending_container *tenant = tick->tenants[i];
        unsigned sharers = running + !tenant->running;

        if (sharers != tenant->sharers && tick->passed_ns)
            add_point(tenant, tick->begin_ns + tick->passed_ns);
        tenant->sharers = sharers;
        tenant->share_ns += time / least(sharers, LENDING_SLOWEST - 1);
    }
    tick->passed_ns += time;
}

/* From *step* on, serve all backlogs evenly, up to the level for which the *time* suffices. */
static void serve_all(struct tick *tick, unsigned step, uint64_t time)
{
    uint64_t level = 0;
    unsigned count = 0;
    unsigned done = 0;

    for (unsigned i = 0; i < tick->busy; i++) {
        if (tick->flows[i].lane->backlog_ns && tick->flows[i].working >> step & 1) {
            tick->order[count++] = &tick->flows[i];
            tick->flows[i].tenant->running++;
        }
    }
    qsort(tick->order, count, sizeof(*tick->order), compare_backlogs);
    for (; done < count; done++) {
        uint64_t backlog = tick->order[done]->lane->backlog_ns;
        uint64_t filling = (backlog - level) * (count - done);

        if (filling > time)
            break;
        pass(tick, filling, count - done);
        time -= filling;
        level = backlog;
        serve(tick->order[done], backlog);
        tick->order[done]->tenant->running--;
    }
    pass(tick, time, count - done);
    level += done < count ? time / (count - done) : 0;
    for (; done < count; done++) {
        serve(tick->order[done], level);
        tick->order[done]->tenant->running--;
    }
}

/* The next step in which a flow begins or ends to work, or STEPS. */
static unsigned next_change(const struct tick *tick, unsigned step)
{
    uint32_t changes = 0;

    for (unsigned i = 0; i < tick->busy; i++)
        changes |= tick->flows[i].working ^ tick->flows[i].working >> 1;
    changes = changes >> step & (ALL_STEPS >> step >> 1);
    return changes ? step + 1 + (unsigned) __builtin_ctz(changes) : STEPS;
}

/* Add the work begun up to this step to the backlogs. Returns the step in which more arrives, or
 * STEPS. */
static unsigned arrive(struct tick *tick, unsigned step)
{
    unsigned next = STEPS;

    for (unsigned i = 0; i < tick->busy; i++) {
        struct lending_process *lane = tick->flows[i].lane;
        unsigned begun = tick->flows[i].step;

        if (lane->fresh_ns && begun > step) {
            next = begun < next ? begun : next;
        } else {
            lane->backlog_ns = least(lane->backlog_ns + lane->fresh_ns, LONGEST_NS);
            lane->fresh_ns = 0;
        }
    }
    return next;
}

static void serve_tick(struct tick *tick)
{
    for (unsigned step = 0; step < STEPS;) {
        unsigned arrival = arrive(tick, step);
        unsigned change = next_change(tick, step);
        unsigned next = arrival < change ? arrival : change;

        serve_all(tick, step, tick->time_ns * next / STEPS - tick->passed_ns);
        step = next;
    }
}

int lending_is_active(const struct lending_container *tenant, uint64_t now)
{
    return loans_is_recent(tenant->active_ns, now, LOANS_WANT_NS) ||
           loans_is_recent(tenant->waited_ns, now, LOANS_WANT_NS);
}

static void mark_active(struct lending_container *tenant, uint64_t now)
{
    if (!loans_is_recent(tenant->active_ns, now, LOANS_IDLE_NS))
        tenant->woken_ns = now;
    tenant->active_ns = now;
}

static void finish_tenant(struct lending_container *tenant, const struct tick *tick)
{
    uint64_t now = tick->begin_ns + tick->time_ns;
    uint64_t weight = least(tick->time_ns, RECENT_NS);
    uint64_t served = 0;

    for (unsigned i = 0; i < tick->busy; i++) {
        if (tick->flows[i].tenant == tenant)
            served += tick->flows[i].served_ns;
    }
    if (served)
        mark_active(tenant, now);
    add_point(tenant, now);
    tenant->used =
        (uint32_t) ((tenant->used * (RECENT_NS - weight) +
                     least(served, tick->time_ns) * CLOCK_WHOLE / tick->time_ns * weight) /
                    RECENT_NS);
}

static uint64_t in_flight(const struct lending_process *lane)
{
    return published_ns(lane->seen.finished, lane->seen.begun);
}

/* Remove finished work from the backlogs. Returns how much of it the model had not served. */
static uint64_t cut_to_in_flight(const struct tick *tick)
{
    uint64_t cut = 0;

    for (unsigned i = 0; i < tick->busy; i++) {
        struct lending_process *lane = tick->flows[i].lane;
        uint64_t ahead = in_flight(lane);

        if (lane->backlog_ns > ahead) {
            cut += lane->backlog_ns - ahead;
            lane->backlog_ns = ahead;
        }
    }
    return cut;
}

static uint64_t lack_of(const struct flow *flow)
{
    return in_flight(flow->lane) - flow->lane->backlog_ns;
}

static int compare_lacks(const void *one, const void *other)
{
    uint64_t left = lack_of(*(struct flow *const *) one);
    uint64_t right = lack_of(*(struct flow *const *) other);

    return (left > right) - (left < right);
}

/* The device served that finished work instead of work that only the model has served. So lanes
 * whose backlog is below their work in flight get it back, those that lack the least first. Lanes
 * that publish nothing any more get none: their processes may be dead. */
static void return_to_in_flight(struct tick *tick, uint64_t cut)
{
    unsigned count = 0;

    for (unsigned i = 0; i < tick->busy; i++) {
        struct lending_process *lane = tick->flows[i].lane;

        if (in_flight(lane) > lane->backlog_ns && lane->unchanged < NEWS_LAST &&
            tick->flows[i].tenant->ahead_ns < AHEAD_NS)
            tick->order[count++] = &tick->flows[i];
    }
    qsort(tick->order, count, sizeof(*tick->order), compare_lacks);
    for (unsigned i = 0; i < count; i++) {
        uint64_t given = least(lack_of(tick->order[i]), cut / (count - i));

        tick->order[i]->lane->backlog_ns += given;
        tick->order[i]->tenant->taken_ns += given;
        cut -= given;
    }
}

/* The least by which a clock grows in this time since the tick began. */
static uint64_t least_grown(uint64_t passed_ns)
{
    return passed_ns / (LENDING_SLOWEST - 1) + 1;
}

/* Take back the time of the clock that the device gave to others instead of this container. */
static void move_clock(struct lending_container *tenant, const struct tick *tick)
{
    uint64_t grown = tenant->share_ns - tenant->before_ns;
    uint64_t least = least_grown(tick->time_ns);
    double part;

    if (!tenant->taken_ns || grown <= least)
        return;
    part = grown - least > tenant->taken_ns
               ? (double) (grown - least - tenant->taken_ns) / (double) (grown - least)
               : 0.0;
    for (unsigned i = 0; i < tenant->point_count; i++) {
        struct clock_sample *point = &tenant->points[i];
        uint64_t so_far = point->share_ns - tenant->before_ns;

        least = least_grown(point->at_ns - tick->begin_ns);
        if (so_far > least)
            point->share_ns =
                tenant->before_ns + least + (uint64_t) ((double) (so_far - least) * part);
    }
    tenant->share_ns = tenant->points[tenant->point_count - 1].share_ns;
}

/* Look back beyond the last tick: processes notice late when their work ended, so their words now
 * say more about that time than they did then. */
static void note_alone(const struct lending *lending, struct lending_container *const *tenants,
                       unsigned count, uint64_t now)
{
    uint64_t begin = lending->now_ns > LOOKBACK_NS ? lending->now_ns - LOOKBACK_NS : 0;

    moments_find(tenants, count, begin > lending->seated_ns ? begin : lending->seated_ns,
                 lending->now_ns, now);
}

/* Fill *others* and return their number; 0: there are too many, or none are wanted. */
static unsigned others_among(const struct lending *lending,
                             struct lending_container *const *tenants, unsigned count,
                             struct others_container **others)
{
    if (!lending->others || count > LENDING_TENANTS)
        return 0;
    for (unsigned i = 0; i < count; i++)
        others[i] = &tenants[i]->others;
    return count;
}

void lending_seat(struct lending *lending, struct lending_container *const *tenants, unsigned count)
{
    struct others_container *others[LENDING_TENANTS];
    unsigned among = others_among(lending, tenants, count, others);

    lending->seated_ns = lending->now_ns;
    for (unsigned i = 0; i < count; i++)
        memset(tenants[i]->moments, 0, sizeof(tenants[i]->moments));
    if (lending->others)
        others_seat(lending->others, others, among);
}

/* Compute what the others had, as far as it is known by now what each container has had. */
static void note_others(struct lending *lending, struct lending_container *const *tenants,
                        unsigned count)
{
    struct others_container *others[LENDING_TENANTS];
    unsigned among = others_among(lending, tenants, count, others);

    if (among)
        others_find(lending->others, others, among);
}

void lending_tick(struct lending *lending, struct lending_container *const *tenants, unsigned count,
                  uint64_t now)
{
    struct tick tick; /* of the largest size, on the stack */

    if (now <= lending->now_ns)
        return;
    tick.begin_ns = lending->now_ns;
    tick.time_ns = now - lending->now_ns;
    tick.passed_ns = 0;
    tick.busy = 0;
    tick.tenants = tenants;
    tick.tenant_count = count;
    for (unsigned i = 0; i < count; i++) {
        if (!tenants[i]->share_ns)
            tenants[i]->share_ns = lending->now_ns;
        tenants[i]->point_count = 0;
        tenants[i]->before_ns = tenants[i]->share_ns;
        tenants[i]->taken_ns = 0;
        collect(&tick, tenants[i]);
    }
    serve_tick(&tick);
    for (unsigned i = 0; i < count; i++)
        finish_tenant(tenants[i], &tick);
    return_to_in_flight(&tick, cut_to_in_flight(&tick));
    for (unsigned i = 0; i < count; i++)
        move_clock(tenants[i], &tick);
    note_alone(lending, tenants, count, now);
    note_others(lending, tenants, count);
    lending->now_ns = now;
    lending->busy = tick.busy;
    lending->tenants = count;
    lending->lent = loans_make(tenants, count, now);
}
