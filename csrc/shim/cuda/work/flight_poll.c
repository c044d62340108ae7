/* SPDX-License-Identifier: Apache-2.0 */
/* flight_poll.c -- finds out which work in flight is done, and reports it to the governor. */
#include "shim/cuda/work/flight_lane.h"
#include "core/number.h"
#include "shim/cuda/work/limited_devices.h"
#include "shim/cuda/work/sampling.h"

#define OVERDUE_NS (4 * MILLISECOND)
#define UNSEEN_NS  ((uint64_t) (1000 * MILLISECOND)) /* for so long work without a lane may run */

enum {
    DOUBTED = 16,      /* waits that get a mark after one that took much longer than expected */
    SURPRISE = 4,      /* times as long as expected */
    OVERDUE_LANES = 4, /* with more, one lane or another is always late, which means nothing */
    VISIT_LANES = 4,   /* with more streams at work there would be too many marks */
};

/* The driver does not report when marks were passed: only when they were seen passed is known. */
static int untimed;

static uint64_t when(const struct mark *mark, uint64_t otherwise_ns, uint64_t now)
{
    uint64_t passed = mark->event ? mark_when(mark, otherwise_ns, now) : 0;

    return passed ? passed : otherwise_ns;
}

/* *joins*: the device went on to it from the piece before it without a gap. */
static uint64_t begin_of(const struct flight_lane *lane, const struct flight_piece *piece,
                         uint64_t now, int *joins)
{
    uint64_t from = when(&piece->begin, piece->opened_ns, now);
    uint64_t done = when(&lane->last, lane->done_ns, now);

    *joins = lane->last.event && done >= from;
    return from > done ? from : done;
}

/* 0: the driver does not report it. */
static uint64_t end_of(const struct flight_lane *lane, const struct flight_piece *piece,
                       uint64_t now)
{
    int joins;
    uint64_t from = begin_of(lane, piece, now, &joins);

    return mark_when(&piece->end, from + (uint64_t) piece->expected_ns, now);
}

/* If a piece took much longer than expected, its shapes' costs have changed: sample one now. */
static void note_surprise(struct flight_lane *lane, const struct flight_piece *piece,
                          int64_t taken_ns)
{
    if (!piece->guessed && !piece->crowded &&
        taken_ns > SURPRISE * piece->expected_ns + MILLISECOND / 5) {
        uint32_t nothing = FLIGHT_NOTHING;

        lane->surprise = 1;
        __atomic_compare_exchange_n(&lane->need, &nothing, FLIGHT_OPEN, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
}

static void finish(struct flight_lane *lane, struct flight_piece *piece, uint64_t until,
                   struct governor *governor, const struct clock_view *clock, uint64_t now)
{
    int joins;
    uint64_t from = begin_of(lane, piece, now, &joins);
    struct governor_piece done = {.from_ns = from,
                                  .given_ns = piece->given_ns,
                                  .until_ns = until,
                                  .since_ns = lane->done_ns,
                                  .expected_ns = piece->expected_ns,
                                  .joins = joins,
                                  .guessed = piece->guessed,
                                  .mixed = piece->mixed,
                                  .sure = !piece->unsure,
                                  .crowded = piece->crowded};
    int64_t marks = sampling_mark_ns();

    if (piece->cost || piece->is_empty)
        sampling_note(lane, piece, from, until, untimed);
    lane->surprise = piece->cost ? 0 : lane->surprise;
    if (!piece->is_empty) {
        if (done.until_ns - done.from_ns > (uint64_t) marks && until > from)
            done.until_ns -= (uint64_t) marks;
        if (done.until_ns > done.from_ns)
            note_surprise(lane, piece, governor_finish(governor, &done, clock, now));
    }
    lane->device->ended_ns = latest(lane->device->ended_ns, until);
    lane->done_ns = until;
    lane->axis_ns = governor->busy_ns;
}

/* A wait for the open piece has lasted longer than expected, and no mark shows the cause. */
static void doubt(struct flight_lane *lane, uint64_t now)
{
    int64_t expected = flight_spent(lane) - lane->open.spent_ns;

    if (lane->waited_for_ns == flight_spent(lane) &&
        now - lane->waited_ns > (uint64_t) (SURPRISE * expected + FLIGHT_CLOSE_NS))
        lane->doubted = DOUBTED;
}

/* Since when the device was at work for a waiting thread; less the time that waking a thread may
 * take. */
static uint64_t waited_from(const struct flight_lane *lane, uint64_t now)
{
    uint64_t from = lane->waited_ns + (uint64_t) FLIGHT_CLOSE_NS;

    return lane->is_waited_for && lane->waited_for_ns == flight_spent(lane) && from < now ? from
                                                                                          : now;
}

void flight_note_idle(struct flight_lane *lane, const struct clock_view *clock,
                      struct governor *governor, uint64_t now)
{
    struct flight_piece *open = &lane->open;

    if (lane->count || !lane->is_open)
        return;
    if (flight_spent(lane) > open->spent_ns && !open->cost) {
        open->expected_ns = flight_spent(lane) - open->spent_ns;
        open->crowded |= lane->device->lanes_begun > 1;
        open->given_ns = lane->by_clock || untimed ? open->opened_ns : waited_from(lane, now);
        doubt(lane, now);
        finish(lane, open, now, governor, clock, now);
    }
    lane->by_clock = 0;
    lane->done_ns = now;
    mark_give_back(&lane->last);
    mark_give_back(&open->begin);
    *open = (struct flight_piece) {.opened_ns = now, .spent_ns = flight_spent(lane)};
}

/* The first piece has not ended. 1: it waits, and is not known to have begun. */
static int see_running(struct flight_lane *lane, const struct clock_view *clock, uint64_t now)
{
    struct flight_piece *piece = lane->count ? &lane->pieces[lane->first] : &lane->open;
    uint64_t from;
    int64_t ran;
    int joins;

    lane->late_ns = 0;
    lane->since_ns = now;
    if (piece->begin.event && mark_poll(&piece->begin, now) == MARK_AHEAD)
        return piece->waits;
    from = lane->since_ns = begin_of(lane, piece, now, &joins);
    if (!lane->count && !lane->by_clock)
        return 0;
    if (!lane->by_clock)
        from = from > piece->given_ns ? from : piece->given_ns;
    ran = governor_running(clock, from, now);
    lane->late_ns = lane->axis_ns + (uint64_t) ran;
    if (piece->cost && piece->cost->state == COST_GUESSED)
        costs_note_running(piece->cost, ran);
    return 0;
}

/* It may take long until the lane's samples are measured: let other launches of their shapes be. */
static void leave_samples(struct flight_lane *lane)
{
    for (unsigned i = 0; i < lane->count; i++) {
        struct flight_piece *piece = &lane->pieces[(lane->first + i) % FLIGHT_PIECES];

        if (piece->cost)
            piece->cost->pending = 0;
    }
}

/* The driver reports nothing more about its marks: merge all of its work into one piece, which ends
 * when its stream is seen to be idle. */
static void lose_marks(struct flight_lane *lane, uint64_t now)
{
    const struct flight_piece *first = &lane->pieces[lane->first];
    int joins;
    struct flight_piece all = {
        .opened_ns = begin_of(lane, first, now, &joins), .spent_ns = first->spent_ns, .guessed = 1};

    flight_give_back_all(lane);
    flight_give_back(&lane->open);
    lane->open = all;
    lane->is_open = 1;
    lane->by_clock = 1;
}

/* A stream whose query fails with another error is idle, too: its context has failed. */
static int is_idle(const struct flight_lane *lane)
{
    CUresult result;

    if (!flight_may_mark(lane))
        return 0;
    result = STREAM_CALL(&lane->stream, cuStreamQuery)(lane->stream.handle);
    return result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_INVALID_CONTEXT;
}

/* Whether it is unfinished, and nothing of it runs. */
int flight_is_held(const struct flight_lane *lane)
{
    return flight_is_unfinished(lane) && lane->is_held;
}

/* The age at which a piece is closed if no launch of its thread closes it. */
static uint64_t old_ns(const struct flight_lane *lane)
{
    return lane->thread == &stream_thread && flight_lanes_begun(lane->device) <= VISIT_LANES
               ? VISIT_NS
               : OLD_NS;
}

static int see_lane(struct flight_lane *lane, struct governor *governor,
                    const struct clock_view *clock, uint64_t now)
{
    while (lane->count) {
        struct flight_piece *piece = &lane->pieces[lane->first];
        enum mark_state state = mark_poll(&piece->end, now);
        uint64_t until;

        if (state == MARK_LOST)
            lose_marks(lane, now);
        if (state != MARK_PASSED)
            break;
        until = end_of(lane, piece, now);
        untimed = !until;
        if (untimed && piece->is_empty)
            piece->is_empty = piece->expected_ns = 0;
        finish(lane, piece, until ? until : now, governor, clock, now);
        mark_give_back(&piece->begin);
        mark_give_back(&lane->last);
        lane->last = piece->end;
        piece->end = (struct mark) {NULL};
        lane->first = (lane->first + 1) % FLIGHT_PIECES;
        lane->count--;
    }
    if (lane->by_clock && is_idle(lane))
        flight_note_idle(lane, clock, governor, now);
    lane->is_held = flight_is_unfinished(lane) && see_running(lane, clock, now);
    if (lane->is_held)
        leave_samples(lane);
    /* The queue of a stream that waits or has much work may be full: then setting a mark blocks. */
    if (lane->is_open && !lane->count && !lane->is_held && !lane->is_done &&
        now - lane->open.opened_ns > old_ns(lane)) {
        doubt(lane, now);
        flight_close(lane, 0);
    }
    if (flight_is_orphan(lane) && !lane->count)
        flight_drop(lane);
    return flight_is_unfinished(lane) && !lane->is_held;
}

/* Work that has run for some time longer than expected probably runs for as long again. */
static uint64_t perhaps_until(const struct flight_lane *lane)
{
    int64_t overdue = (int64_t) (lane->late_ns - lane->end_ns);

    return overdue > 0 ? lane->late_ns + (uint64_t) smaller(overdue, OVERDUE_NS) : lane->end_ns;
}

/* A lane's thread may launch while the caller polls the lane: so a single poll is no proof, and
 * idle_rest() publishes only at its second call. */
void flight_note_rest(struct limited_device *device, uint64_t now)
{
    uint64_t since = 0;

    if (!device->share.beside && clock_sharers(&device->clock) == 1)
        return;
    if (device->unseen_ns && now - device->unseen_ns < UNSEEN_NS)
        return;
    FLIGHT_EACH(lane)
    if (lane->device == device) {
        if (flight_is_unfinished(lane)) {
            idle_work(&device->governor.idle, now);
            return;
        }
        since = latest(since, lane->done_ns);
    }
    if (!since)
        return;
    FLIGHT_EACH(lane)
    if (lane->device == device) {
        uint32_t nothing = FLIGHT_NOTHING;

        __atomic_compare_exchange_n(&lane->need, &nothing, FLIGHT_OPEN, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED);
    }
    idle_rest(&device->governor.idle, since, now);
}

/* How much of a lane's first piece was done while other streams kept the device at work, which is
 * charged already. Streams that run one after the other seem to do all of it then, so it is scaled
 * by how much streams overlap. */
static int64_t done_beside(const struct flight_lane *lane, const struct governor *governor)
{
    int64_t ran = (int64_t) (lane->late_ns - lane->axis_ns);
    int64_t passed = (int64_t) (governor->busy_ns - lane->axis_ns);
    uint32_t overlap = governor->overlap;

    if (!lane->count || lane->late_ns <= lane->axis_ns || !overlap || overlap >= CLOCK_WHOLE)
        return 0;
    ran = smaller(smaller(ran, passed), lane->pieces[lane->first].expected_ns);
    return ran - budget_part(ran, overlap);
}

/* The number of its launches that were never measured. */
static int guesses_in(const struct flight_lane *lane)
{
    int guesses = lane->is_open ? lane->open.guessed : 0;

    for (unsigned i = 0; i < lane->count; i++)
        guesses += lane->pieces[(lane->first + i) % FLIGHT_PIECES].guessed;
    return guesses;
}

void flight_poll(struct limited_device *device, struct governor *governor,
                 const struct clock_view *clock, uint64_t now)
{
    struct governor_flight flight = {.since_ns = now};
    int begun = 0;

    FLIGHT_EACH(lane)
    if (lane->device == device)
        lane->is_begun = see_lane(lane, governor, clock, now);
    FLIGHT_EACH(lane)
    if (lane->device == device) {
        /* Less may be left than was expected, but never more: late work is charged as it runs. */
        int64_t ahead = larger(flight_outstanding(lane), 0);
        uint64_t place = governor_place(governor, 0, ahead);

        lane->end_ns = lane->end_ns < place ? lane->end_ns : place;
        if (!lane->is_begun)
            continue;
        if (perhaps_until(lane) > flight.overdue_ns) {
            flight.overdue_ns = perhaps_until(lane);
            flight.overdue_of = lane;
        }
        flight.late_ns = latest(flight.late_ns, lane->late_ns);
        lane->end_ns = latest(lane->end_ns, lane->late_ns);
        flight.running |= lane->count > 0;
        flight.guessing |= lane->count > 0 && lane->pieces[lane->first].guessed;
        flight.guesses += guesses_in(lane);
        flight.since_ns = lane->since_ns < flight.since_ns ? lane->since_ns : flight.since_ns;
        flight.ahead_ns += ahead - done_beside(lane, governor);
        begun++;
        if (lane->end_ns > flight.end_ns) {
            flight.end_ns = lane->end_ns;
            flight.longest_ns = ahead;
        }
    }
    if (begun > OVERDUE_LANES)
        flight.overdue_ns = 0;
    governor_settle(governor, clock, &flight, now);
    flight_note_rest(device, now);
    __atomic_store_n(&device->lanes_begun, begun, __ATOMIC_RELAXED);
    sampling_learn(device, clock, now);
}

void flight_poll_after_fork(void)
{
    untimed = 0;
}
