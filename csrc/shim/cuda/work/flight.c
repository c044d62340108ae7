/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c -- lanes, and the pieces that marks cut them into; see flight.h. */
#include "shim/cuda/work/flight.h"
#include "shim/cuda/work/capture.h"
#include "core/number.h"
#include "shim/cuda/work/pace.h"

#include <string.h>

#define MILLISECOND INT64_C(1000000)

/* A piece with less in it stays open: a mark takes the host and the device a few microseconds. */
#define PIECE_NS MILLISECOND
#define WAY_PIECE_NS \
    (MILLISECOND / 4) /* where little may be in flight, so that some of it is soon seen done */
#define OLD_NS     ((uint64_t) (4 * MILLISECOND))      /* at this age it is closed anyway */
#define VISIT_NS   ((uint64_t) (3 * MILLISECOND / 10)) /* likewise if the device waits for us */
#define CHUNK_NS   (MILLISECOND / 100)                 /* least time bought there */
#define SAMPLE_NS  ((uint64_t) (MILLISECOND / 5))      /* between samples of a lane */
#define OVERDUE_NS (4 * MILLISECOND)
#define UNSEEN_NS  ((uint64_t) (1000 * MILLISECOND)) /* for so long work without a lane may run */
#define LAUNCH_NS \
    INT64_C(5000)     /* most time on the way to the device: beyond it the device works already */
#define KNOWN_EVERY 8 /* one of so many samples measures a known shape again */

enum {
    EMPTY_EVERY = 16, /* samples between measurements of the marks themselves */
    EMPTY_FIRST = 4,
    MARKS_LEAST = 3, /* measurements of marks before the shortest of them counts */
    EMPTIES = 3, /* in a row: if marks take the device longer, it is behind the host at the last */
    IDLE_EVERY = 2,  /* one of so many launches on an idle device is measured */
    UNSURE_PART = 4, /* this part of a sample may be a guess at what others had */
    LEARNING = 256,
    DOUBTED = 16,      /* waits that get a mark after one that took much longer than expected */
    SURPRISE = 4,      /* times as long as expected */
    OVERDUE_LANES = 4, /* with more, one lane or another is always late, which means nothing */
    VISIT_LANES = 4,   /* with more streams at work there would be too many marks */
};

__thread char flight_thread;
__thread struct flight_lane *flight_own[FLIGHT_OWN];

struct flight_lane flight_lanes[FLIGHT_LANES];
unsigned flight_lane_end;

/* The time of a mark right behind another mark, and how often that was measured, up to
 * MARKS_LEAST. */
static int64_t mark_ns;
static int marks_measured;

/* The driver does not report when marks were passed: only when they were seen passed is known. */
static int untimed;

/* Samples whose time the arbiter's clock does not cover yet. */
static struct sample {
    struct pace_device *device;
    struct cost *cost;
    struct costs_key key;
    uint64_t since_ns, from_ns, until_ns;
    int64_t taken_ns;
    int64_t launch_ns; /* deducted for the launch's way to the device */
    int64_t low_ns;    /* since other streams were last seen to end something */
    int queued;        /* the device was at work in its stream until it began */
    int crowded;       /* other streams had work, too: it may have waited for them */
    int changed;       /* it took much longer than before */
} learning[LEARNING];
static unsigned learning_first, learning_count;

static int is_unfinished(const struct flight_lane *lane)
{
    return lane->count || (lane->is_open && flight_spent(lane) > lane->open.spent_ns);
}

static void give_back(struct flight_piece *piece)
{
    mark_give_back(&piece->begin);
    mark_give_back(&piece->end);
}

static void give_back_all(struct flight_lane *lane)
{
    for (unsigned i = 0; i < lane->count; i++) {
        struct flight_piece *piece = &lane->pieces[(lane->first + i) % FLIGHT_PIECES];

        if (piece->cost)
            piece->cost->pending = 0;
        give_back(piece);
    }
    lane->count = 0;
}

/* The time bought for it that is not known to be used up. */
static int64_t outstanding(const struct flight_lane *lane)
{
    const struct flight_piece *first = lane->count ? &lane->pieces[lane->first] : &lane->open;

    if (!is_unfinished(lane))
        return __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED);
    return lane->bought_ns - first->spent_ns;
}

void flight_note_unseen(struct pace_device *device)
{
    device->unseen_ns = clock_now_ns(CLOCK_MONOTONIC);
}

/* Free the lane; its work in flight will not be measured. */
static void drop(struct flight_lane *lane)
{
    if (is_unfinished(lane)) {
        flight_note_unseen(lane->device);
        governor_trust(
            &lane->device->governor,
            larger(outstanding(lane) - __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED), 0));
    }
    give_back_all(lane);
    mark_give_back(&lane->last);
    give_back(&lane->open);
    lane->is_open = 0;
    __atomic_store_n(&lane->name, 0, __ATOMIC_RELAXED);
}

static struct flight_lane *find_lane(const struct pace_device *device, uintptr_t name)
{
    FLIGHT_EACH(lane)
    if (lane->name == name && lane->thread == &flight_thread && lane->device == device)
        return lane;
    return NULL;
}

static struct flight_lane *free_lane(void)
{
    for (unsigned i = 0; i < flight_lane_end; i++)
        if (!flight_lanes[i].name)
            return &flight_lanes[i];
    if (flight_lane_end < FLIGHT_LANES)
        return &flight_lanes[flight_lane_end++];
    for (unsigned i = 0; i < FLIGHT_LANES; i++)
        if (!is_unfinished(&flight_lanes[i]))
            return &flight_lanes[i];
    return NULL;
}

/* A thread's first launch in a stream waits if other threads' launches there do. */
static uint32_t first_need(const struct pace_device *device, uintptr_t name)
{
    FLIGHT_EACH(lane)
    if (lane->name == name && lane->device == device && flight_waits(lane))
        return FLIGHT_WAITS;
    return FLIGHT_OPEN;
}

struct flight_lane *flight_take_lane(struct pace_device *device, const struct stream *stream)
{
    uintptr_t name = flight_name(stream);
    struct flight_lane *lane = find_lane(device, name);

    if (!lane) {
        uint32_t need = first_need(device, name);

        lane = free_lane();
        if (!lane)
            return NULL;
        drop(lane);
        *lane = (struct flight_lane) {.name = name,
                                      .thread = &flight_thread,
                                      .device = device,
                                      .need = need,
                                      .chunk_ns = MILLISECOND,
                                      .stream = *stream};
        if (context_owns_stream(stream->handle) &&
            driver.cuStreamGetCtx(stream->handle, &lane->context) != CUDA_SUCCESS)
            lane->context = NULL;
    }
    flight_own[flight_place(name)] = lane;
    return lane;
}

/* Its stream was destroyed, and its work goes on. */
static int is_orphan(const struct flight_lane *lane)
{
    return lane->name == (uintptr_t) lane;
}

/* While a stream captures, neither it nor others that could have joined the capture may be touched,
 * and the legacy stream not at all. */
static int may_mark(const struct flight_lane *lane)
{
    if (is_orphan(lane))
        return 0;
    if (lane->thread != &flight_thread)
        return context_owns_stream(lane->stream.handle) && !capture_is_going_on();
    return !capture_is_going_on() ||
           (lane->name != (uintptr_t) CU_STREAM_LEGACY && !capture_has(&lane->stream));
}

static struct flight_piece *next_piece(struct flight_lane *lane)
{
    return &lane->pieces[(lane->first + lane->count) % FLIGHT_PIECES];
}

static void open_piece(struct flight_lane *lane, int marked, uint64_t now)
{
    lane->open = (struct flight_piece) {.opened_ns = now, .spent_ns = flight_spent(lane)};
    if (!lane->count)
        lane->axis_ns = lane->device->governor.busy_ns;
    if (marked && may_mark(lane) && mark_set(&lane->open.begin, &lane->stream) == 0)
        lane->open.opened_ns = clock_now_ns(CLOCK_MONOTONIC);
    lane->is_open = 1;
}

/* 0: it cannot be marked, and stays open. */
static int close_piece(struct flight_lane *lane)
{
    if (lane->count == FLIGHT_PIECES || !may_mark(lane))
        return 0;
    if (mark_set(&lane->open.end, &lane->stream) != 0) {
        lane->by_clock = 1;
        return 0;
    }
    lane->open.given_ns = lane->open.end.set_ns;
    lane->open.expected_ns = flight_spent(lane) - lane->open.spent_ns;
    lane->open.crowded |= lane->device->lanes_begun > 1;
    *next_piece(lane) = lane->open;
    lane->open = (struct flight_piece) {.given_ns = lane->open.given_ns};
    lane->count++;
    lane->is_open = 0;
    return 1;
}

void flight_close(struct flight_lane *lane, int64_t least_ns)
{
    if (!lane->is_open || flight_spent(lane) - lane->open.spent_ns <= least_ns)
        return;
    if (close_piece(lane))
        __atomic_store_n(&lane->need, FLIGHT_OPEN, __ATOMIC_RELAXED);
}

void flight_note_wait(struct flight_lane *lane, int alone, uint64_t now)
{
    if (lane->waited_for_ns == flight_spent(lane) && lane->is_waited_for == alone)
        return; /* the thread polls */
    lane->waited_ns = now;
    lane->waited_for_ns = flight_spent(lane);
    lane->is_waited_for = alone;
    lane->doubted -= lane->doubted > 0;
}

int flight_has_ended(const struct flight_lane *lane)
{
    return lane->thread == &flight_thread || lane->waited_for_ns == flight_spent(lane);
}

int64_t flight_unmarked(const struct flight_lane *lane)
{
    return lane->open.guessed || lane->doubted ? 0 : FLIGHT_CLOSE_NS;
}

/* Prefer shapes that were never measured, then those whose cost may include others' time slices. */
static int wants_sample(struct flight_lane *lane, const struct cost *cost, int waits, uint64_t now)
{
    static unsigned samples;

    if (now - lane->sampled_ns < SAMPLE_NS || cost->pending || lane->by_clock ||
        (!waits && flight_waits(lane)) || lane->count > FLIGHT_PIECES - 3)
        return 0;
    if (waits)
        return cost->state == COST_GUESSED || samples++ % KNOWN_EVERY == 0;
    if (lane->surprise)
        return 1;
    /* If the device is idle before it, the sample measures more than the launch. */
    if (cost->state == COST_MEASURED && samples++ % KNOWN_EVERY)
        return 0;
    if (lane->count || cost->state == COST_GUESSED || lane->idle_samples++ % IDLE_EVERY == 0)
        return 1;
    lane->need = FLIGHT_SAMPLE;
    return 0;
}

/* Set marks one by one, with nothing between them. The driver has a mark by the time the next one
 * is set: if the device comes to it only then, the time is that of the mark, not of setting it. */
static void measure_marks(struct flight_lane *lane)
{
    struct flight_piece *before = NULL;

    for (int i = 0; i < EMPTIES && lane->count < FLIGHT_PIECES - 2; i++) {
        struct flight_piece *piece = next_piece(lane);

        lane->open.is_empty = 1;
        if (!close_piece(lane)) {
            lane->open.is_empty = 0;
            break;
        }
        if (before)
            before->given_ns = piece->given_ns;
        before = piece;
        open_piece(lane, 0, piece->given_ns);
    }
    if (before)
        before->given_ns = clock_now_ns(CLOCK_MONOTONIC);
}

/* Where the device waits for the thread, pieces are no longer than VISIT_NS, to know how long the
 * device was busy: buying less makes the thread come here again by then. */
static void note_visit(struct flight_lane *lane, uint64_t now)
{
    uint64_t passed = now - lane->visited_ns;

    if (lane->visited_ns && passed > 2 * VISIT_NS && !lane->count)
        lane->chunk_ns = larger(lane->chunk_ns / 2, CHUNK_NS);
    else if (passed < VISIT_NS)
        lane->chunk_ns = smaller(2 * lane->chunk_ns, MILLISECOND);
    lane->visited_ns = now;
}

static int64_t piece_ns(const struct flight_lane *lane)
{
    return __atomic_load_n(&lane->device->above, __ATOMIC_RELAXED) ? WAY_PIECE_NS : PIECE_NS;
}

int flight_begin(struct flight_lane *lane, const struct costs_key *key, struct cost *cost)
{
    static unsigned sampled;
    uint64_t now = clock_now_ns(CLOCK_MONOTONIC);
    int waits = lane->need == FLIGHT_WAITS;
    int others = lane->device->lanes_begun > is_unfinished(lane);
    int sample;

    lane->device->lanes_begun += !is_unfinished(lane);
    __atomic_store_n(&lane->need, FLIGHT_NOTHING, __ATOMIC_RELAXED);
    note_visit(lane, now);
    sample = wants_sample(lane, cost, waits, now);
    if (lane->is_open && flight_spent(lane) > lane->open.spent_ns &&
        (sample || waits || flight_spent(lane) - lane->open.spent_ns >= piece_ns(lane) ||
         now - lane->open.opened_ns > (lane->count ? OLD_NS : VISIT_NS)) &&
        !close_piece(lane))
        sample = 0;
    if (lane->is_open && flight_spent(lane) == lane->open.spent_ns && !lane->open.begin.event)
        lane->open.opened_ns = now; /* nothing was in it until now */
    if (!lane->is_open || sample || waits) {
        mark_give_back(&lane->open.begin);
        open_piece(lane, waits || (sample && !lane->count), now);
    }
    lane->open.waits |= waits;
    lane->open.guessed |= cost->state == COST_GUESSED;
    lane->open.unsure |= cost->state < COST_SURE;
    if (!sample)
        return 0;
    if (sampled++ % EMPTY_EVERY == 0 || sampled < EMPTY_FIRST)
        measure_marks(lane);
    lane->open.cost = cost;
    lane->open.crowded = others;
    lane->open.key = *key;
    lane->open.guessed = cost->state == COST_GUESSED;
    lane->open.unsure = cost->state < COST_SURE;
    lane->sampled_ns = now;
    cost->pending = 1;
    return 1;
}

void flight_end_sample(struct flight_lane *lane, int marked)
{
    if (!lane->is_open || !lane->open.cost)
        return;
    if (!marked || !close_piece(lane)) {
        lane->open.cost->pending = 0;
        lane->open.cost = NULL;
        return;
    }
    open_piece(lane, 0, lane->open.given_ns);
}

int flight_has_others(void)
{
    FLIGHT_EACH(lane)
    if (lane->thread != &flight_thread && !is_orphan(lane))
        return 1;
    return 0;
}

int flight_has_begun(const struct pace_device *device)
{
    return device->governor.running;
}

int flight_lanes_begun(const struct pace_device *device)
{
    return (int) larger(__atomic_load_n(&device->lanes_begun, __ATOMIC_RELAXED), 1);
}

/* --- what is done ----------------------------------------------------------------------------- */

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

static void learn_mark(int64_t ns)
{
    ns = larger(ns, 1);
    if (!marks_measured || ns < mark_ns)
        mark_ns = ns;
    else if (marks_measured == MARKS_LEAST)
        mark_ns += smaller(ns - mark_ns, mark_ns) / 16;
    marks_measured += marks_measured < MARKS_LEAST;
}

/* A thread that is preempted between two marks measures the preemption, too: one measurement alone
 * counts for nothing. */
static int64_t mark_cost(void)
{
    return marks_measured == MARKS_LEAST ? mark_ns : 0;
}

/* A sample is done. If the device was idle, the time in which the launch was on its way to the
 * driver lies between its mark and its beginning. */
static void note_sample(const struct flight_lane *lane, const struct flight_piece *piece,
                        uint64_t from, uint64_t until)
{
    uint64_t armed = piece->opened_ns > from ? piece->opened_ns : from;
    int64_t gap = larger((int64_t) (piece->given_ns - armed) - mark_cost(), 0);
    uint64_t ended = lane->device->ended_ns;
    struct sample sample = {lane->device,
                            piece->cost,
                            piece->key,
                            lane->done_ns,
                            from,
                            until,
                            (int64_t) (until - from) - mark_cost(),
                            0,
                            0,
                            piece->given_ns <= from,
                            piece->crowded,
                            lane->surprise};

    if (piece->is_empty) {
        if (sample.queued)
            learn_mark((int64_t) (until - from));
        return;
    }
    if (!sample.queued)
        sample.launch_ns = within(gap, 0, smaller(LAUNCH_NS, sample.taken_ns / 2));
    sample.taken_ns -= sample.launch_ns;
    if (untimed && sample.queued) {
        piece->cost->pending = 0;
        return;
    }
    sample.taken_ns = larger(sample.taken_ns, 1);
    /* It may have waited for other streams, but not since the last of them was seen to end. */
    sample.low_ns = sample.taken_ns;
    if (sample.crowded && ended > from)
        sample.low_ns = ended < until ? smaller(sample.taken_ns, (int64_t) (until - ended)) : 1;
    if (learning_count == LEARNING) {
        learning_first = (learning_first + 1) % LEARNING;
        learning_count--;
    }
    learning[(learning_first + learning_count++) % LEARNING] = sample;
    if (piece->cost->state == COST_GUESSED) /* use it at once, before others' part is known */
        costs_note_first(&pace_costs, piece->cost, &piece->key, sample.low_ns);
    piece->cost->pending = 0;
}

/* Beside others, work that found the device idle waited for the turn of others before it began. */
static void learn(const struct sample *sample, const struct clock_view *clock, uint64_t now)
{
    int64_t rate = clock_rate(clock, sample->from_ns, sample->until_ns, now);
    uint32_t overlap = sample->device->governor.overlap;
    double part = (double) rate / CLOCK_WHOLE;
    struct costs_sample known = {
        .ns = sample->taken_ns,
        .most_ns = sample->taken_ns + sample->launch_ns,
        .low_ns = sample->low_ns,
        .alone = governor_alone(clock, sample->since_ns, sample->from_ns, sample->until_ns, now),
        .queued = sample->queued,
        .crowded = sample->crowded,
        .changed = sample->changed};
    struct clock_others others;

    if (sample->crowded && sample->queued && overlap && overlap < CLOCK_WHOLE)
        part *= (double) overlap / CLOCK_WHOLE;
    if (clock_covers(clock, sample->until_ns))
        known.clock_ns = larger((int64_t) ((double) sample->taken_ns * part), 1);
    if (clock_others(clock, sample->from_ns, sample->until_ns, &others) &&
        others.unsure_ns <= sample->taken_ns / UNSURE_PART)
        known.own_ns = larger(sample->taken_ns - others.had_ns, 1);
    costs_learn(&pace_costs, sample->cost, &sample->key, &known);
    if (sample->changed)
        governor_reset_overlap(&sample->device->governor);
}

static void learn_all(const struct pace_device *device, const struct clock_view *clock,
                      uint64_t now)
{
    while (learning_count) {
        const struct sample *sample = &learning[learning_first];

        if (sample->device == device) {
            if (clock->valid && clock_known_until(clock) < sample->until_ns &&
                now - sample->until_ns < CLOCK_STALE_NS)
                return;
            learn(sample, clock, now);
        } else if (now - sample->until_ns < CLOCK_STALE_NS) {
            return;
        }
        learning_first = (learning_first + 1) % LEARNING;
        learning_count--;
    }
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
                                  .sure = !piece->unsure,
                                  .crowded = piece->crowded};
    int64_t marks = mark_cost();

    if (piece->cost || piece->is_empty)
        note_sample(lane, piece, from, until);
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
    if (piece->begin.event && mark_look(&piece->begin, now) == MARK_AHEAD)
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

    give_back_all(lane);
    give_back(&lane->open);
    lane->open = all;
    lane->is_open = 1;
    lane->by_clock = 1;
}

/* A stream whose query fails with another error is idle, too: its context has failed. */
static int is_idle(const struct flight_lane *lane)
{
    CUresult result;

    if (!may_mark(lane))
        return 0;
    result = STREAM_CALL(&lane->stream, cuStreamQuery)(lane->stream.handle);
    return result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_INVALID_CONTEXT;
}

/* Whether it is unfinished, and nothing of it runs. */
int flight_is_held(const struct flight_lane *lane)
{
    return is_unfinished(lane) && lane->is_held;
}

/* The age at which a piece is closed if no launch of its thread closes it. */
static uint64_t old_ns(const struct flight_lane *lane)
{
    return lane->thread == &flight_thread && flight_lanes_begun(lane->device) <= VISIT_LANES
               ? VISIT_NS
               : OLD_NS;
}

static int see_lane(struct flight_lane *lane, struct governor *governor,
                    const struct clock_view *clock, uint64_t now)
{
    while (lane->count) {
        struct flight_piece *piece = &lane->pieces[lane->first];
        enum mark_state state = mark_look(&piece->end, now);
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
    lane->is_held = is_unfinished(lane) && see_running(lane, clock, now);
    if (lane->is_held)
        leave_samples(lane);
    /* The queue of a stream that waits or has much work may be full: then setting a mark blocks. */
    if (lane->is_open && !lane->count && !lane->is_held && !lane->is_done &&
        now - lane->open.opened_ns > old_ns(lane)) {
        doubt(lane, now);
        flight_close(lane, 0);
    }
    if (is_orphan(lane) && !lane->count)
        drop(lane);
    return is_unfinished(lane) && !lane->is_held;
}

/* Work that has run for some time longer than expected probably runs for as long again. */
static uint64_t perhaps_until(const struct flight_lane *lane)
{
    int64_t overdue = (int64_t) (lane->late_ns - lane->end_ns);

    return overdue > 0 ? lane->late_ns + (uint64_t) smaller(overdue, OVERDUE_NS) : lane->end_ns;
}

/* A lane's thread may launch while the caller looks at the lane: so a single look is no proof, and
 * governor_rest() publishes only at its second call. */
void flight_note_rest(struct pace_device *device, uint64_t now)
{
    uint64_t since = 0;

    if (!device->share.beside && clock_sharers(&device->clock) == 1)
        return;
    if (device->unseen_ns && now - device->unseen_ns < UNSEEN_NS)
        return;
    FLIGHT_EACH(lane)
    if (lane->device == device) {
        if (is_unfinished(lane)) {
            governor_work(&device->governor, now);
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
    governor_rest(&device->governor, since, now);
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

void flight_look(struct pace_device *device, struct governor *governor,
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
        int64_t ahead = larger(outstanding(lane), 0);
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
    learn_all(device, clock, now);
}

/* --- ends ------------------------------------------------------------------------------------- */

void flight_end_stream(CUstream stream)
{
    static const char no_thread;

    FLIGHT_EACH(lane)
    if (lane->name == (uintptr_t) stream) {
        flight_close(lane, 0);
        if (!lane->count || (lane->is_open && flight_spent(lane) > lane->open.spent_ns)) {
            drop(lane);
            continue;
        }
        lane->is_open = 0;
        lane->thread = &no_thread;
        __atomic_store_n(&lane->name, (uintptr_t) lane, __ATOMIC_RELAXED);
    }
}

void flight_forget(CUcontext context)
{
    FLIGHT_EACH(lane)
    if (!context || !lane->context || lane->context == context)
        drop(lane);
}

static void skip_piece(struct flight_piece *piece, uint64_t now)
{
    if (piece->cost)
        piece->cost->pending = 0;
    if (piece->is_empty)
        piece->is_empty = piece->expected_ns = 0;
    piece->cost = NULL;
    mark_give_back(&piece->begin);
    piece->opened_ns = now;
}

void flight_skip_suspension(uint64_t now)
{
    FLIGHT_EACH(lane)
    {
        for (unsigned i = 0; i < lane->count; i++)
            skip_piece(&lane->pieces[(lane->first + i) % FLIGHT_PIECES], now);
        if (lane->is_open)
            skip_piece(&lane->open, now);
        mark_give_back(&lane->last);
        lane->done_ns = now;
        lane->waited_ns = now;
    }
}

void flight_after_fork(void)
{
    flight_lane_end = 0;
    memset(flight_own, 0, sizeof(flight_own));
    marks_measured = 0;
    untimed = 0;
    learning_count = 0;
    for (unsigned i = 0; i < FLIGHT_LANES && flight_lanes[i].thread; i++)
        flight_lanes[i].name = 0;
}
