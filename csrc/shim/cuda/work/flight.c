/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c -- lanes, and the pieces that marks cut them into; see flight.h. flight_poll.c finds out
 * which pieces are done, sampling.c learns from those that were measured. */
#include "shim/cuda/work/flight_lane.h"
#include "shim/cuda/work/capture.h"
#include "shim/cuda/work/limited_devices.h"
#include "core/number.h"

#include <string.h>

/* A piece with less in it stays open: a mark takes the host and the device a few microseconds. */
#define PIECE_NS MILLISECOND
#define WAY_PIECE_NS \
    (MILLISECOND / 4) /* where little may be in flight, so that some of it is soon seen done */
#define CHUNK_NS    (MILLISECOND / 100)            /* least time bought there */
#define SAMPLE_NS   ((uint64_t) (MILLISECOND / 5)) /* between samples of a lane */
#define KNOWN_EVERY 8 /* one of so many samples measures a known shape again */

enum {
    EMPTY_EVERY = 16, /* samples between measurements of the marks themselves */
    EMPTY_FIRST = 4,
    EMPTIES = 3, /* in a row: if marks take the device longer, it is behind the host at the last */
    IDLE_EVERY = 2, /* one of so many launches on an idle device is measured */
};

__thread struct flight_lane *flight_own[FLIGHT_OWN];

/* The lane of the launch that is being made by the thread that holds the marks. */
static const struct flight_lane *launched_in;

struct flight_lane flight_lanes[FLIGHT_LANES];
unsigned flight_lane_end;

void flight_give_back(struct flight_piece *piece)
{
    mark_give_back(&piece->begin);
    mark_give_back(&piece->end);
}

void flight_give_back_all(struct flight_lane *lane)
{
    for (unsigned i = 0; i < lane->count; i++) {
        struct flight_piece *piece = &lane->pieces[(lane->first + i) % FLIGHT_PIECES];

        if (piece->cost)
            piece->cost->pending = 0;
        flight_give_back(piece);
    }
    lane->count = 0;
}

int64_t flight_outstanding(const struct flight_lane *lane)
{
    const struct flight_piece *first = lane->count ? &lane->pieces[lane->first] : &lane->open;

    if (!flight_is_unfinished(lane))
        return __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED);
    return lane->bought_ns - first->spent_ns;
}

void flight_note_unseen(struct limited_device *device)
{
    device->unseen_ns = clock_now_ns(CLOCK_MONOTONIC);
}

void flight_drop(struct flight_lane *lane)
{
    if (flight_is_unfinished(lane)) {
        flight_note_unseen(lane->device);
        governor_trust(
            &lane->device->governor,
            larger(flight_outstanding(lane) - __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED),
                   0));
    }
    flight_give_back_all(lane);
    mark_give_back(&lane->last);
    flight_give_back(&lane->open);
    lane->is_open = 0;
    __atomic_store_n(&lane->name, 0, __ATOMIC_RELAXED);
}

static struct flight_lane *find_lane(const struct limited_device *device, uintptr_t name)
{
    FLIGHT_EACH(lane)
    if (lane->name == name && lane->thread == &stream_thread && lane->device == device)
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
        if (!flight_is_unfinished(&flight_lanes[i]))
            return &flight_lanes[i];
    return NULL;
}

/* A thread's first launch in a stream waits if other threads' launches there do. */
static uint32_t first_need(const struct limited_device *device, uintptr_t name)
{
    FLIGHT_EACH(lane)
    if (lane->name == name && lane->device == device && flight_waits(lane))
        return FLIGHT_WAITS;
    return FLIGHT_OPEN;
}

struct flight_lane *flight_take_lane(struct limited_device *device, const struct stream *stream)
{
    uintptr_t name = stream_name(stream);
    struct flight_lane *lane = find_lane(device, name);

    if (!lane) {
        uint32_t need = first_need(device, name);

        lane = free_lane();
        if (!lane)
            return NULL;
        flight_drop(lane);
        *lane = (struct flight_lane) {.name = name,
                                      .thread = &stream_thread,
                                      .device = device,
                                      .need = need,
                                      .chunk_ns = MILLISECOND,
                                      .stream = *stream};
        if (stream_is_object(stream->handle) &&
            driver.cuStreamGetCtx(stream->handle, &lane->context) != CUDA_SUCCESS)
            lane->context = NULL;
    }
    flight_own[flight_place(name)] = lane;
    return lane;
}

int flight_may_mark(const struct flight_lane *lane)
{
    if (flight_is_orphan(lane))
        return 0;
    if (lane->thread != &stream_thread)
        return stream_is_object(lane->stream.handle) && !capture_is_going_on();
    if (!capture_is_going_on())
        return 1;
    /* A mark in the legacy stream breaks a capture in a stream that synchronises with it, which may
     * begin at any moment; so does a launch, which the program would not make then. */
    return (lane->name != (uintptr_t) CU_STREAM_LEGACY || lane == launched_in) &&
           !capture_forbids(&lane->stream);
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
    if (marked && flight_may_mark(lane) && mark_set(&lane->open.begin, &lane->stream) == 0)
        lane->open.opened_ns = clock_now_ns(CLOCK_MONOTONIC);
    lane->is_open = 1;
}

/* 0: it cannot be marked, and stays open. */
static int close_piece(struct flight_lane *lane)
{
    if (lane->count == FLIGHT_PIECES || !flight_may_mark(lane))
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
    return lane->thread == &stream_thread || lane->waited_for_ns == flight_spent(lane);
}

int64_t flight_unmarked(const struct flight_lane *lane)
{
    return lane->open.guessed || lane->doubted ? 0 : FLIGHT_CLOSE_NS;
}

/* By chance: programs repeat the same launches, and with a counter the same ones would be measured
 * again and again, and others never. */
static int is_one_of(unsigned many)
{
    static uint32_t seed = 1;

    seed = seed * 1664525U + 1013904223U;
    return (seed >> 16) % many == 0;
}

/* Prefer shapes that were never measured, then those whose cost may include others' time slices. */
static int wants_sample(struct flight_lane *lane, const struct cost *cost, int waits, uint64_t now)
{
    if (now - lane->sampled_ns < SAMPLE_NS || cost->pending || lane->by_clock ||
        (!waits && flight_waits(lane)) || lane->count > FLIGHT_PIECES - 3)
        return 0;
    if (waits)
        return cost->state == COST_GUESSED || is_one_of(KNOWN_EVERY);
    if (lane->surprise)
        return 1;
    /* If the device is idle before it, the sample measures more than the launch. */
    if (cost->state == COST_MEASURED && lane->device->governor.suspect_ns < now &&
        !is_one_of(KNOWN_EVERY))
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

static int begin(struct flight_lane *lane, const struct costs_key *key, struct cost *cost)
{
    static unsigned sampled;
    uint64_t now = clock_now_ns(CLOCK_MONOTONIC);
    int waits = lane->need == FLIGHT_WAITS;
    int others = lane->device->lanes_begun > flight_is_unfinished(lane);
    int sample;

    lane->device->lanes_begun += !flight_is_unfinished(lane);
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
    lane->open.guessed += cost->state == COST_GUESSED;
    lane->open.unsure |= cost->state < COST_SURE;
    lane->open.mixed |= cost->mixed;
    if (!sample)
        return 0;
    if (sampled++ % EMPTY_EVERY == 0 || sampled < EMPTY_FIRST)
        measure_marks(lane);
    lane->open.cost = cost;
    lane->open.crowded = others;
    lane->open.key = *key;
    lane->open.guessed = cost->state == COST_GUESSED;
    lane->open.unsure = cost->state < COST_SURE;
    lane->open.mixed = cost->mixed;
    lane->sampled_ns = now;
    cost->pending = 1;
    return 1;
}

int flight_begin(struct flight_lane *lane, const struct costs_key *key, struct cost *cost)
{
    int is_sample;

    launched_in = lane;
    is_sample = begin(lane, key, cost);
    launched_in = NULL;
    return is_sample;
}

static int close_sample(struct flight_lane *lane)
{
    int closed;

    launched_in = lane;
    closed = close_piece(lane);
    launched_in = NULL;
    return closed;
}

void flight_end_sample(struct flight_lane *lane, int marked)
{
    if (!lane->is_open || !lane->open.cost)
        return;
    if (!marked || !close_sample(lane)) {
        lane->open.cost->pending = 0;
        lane->open.cost = NULL;
        return;
    }
    open_piece(lane, 0, lane->open.given_ns);
}

int flight_has_others(void)
{
    FLIGHT_EACH(lane)
    if (lane->thread != &stream_thread && !flight_is_orphan(lane))
        return 1;
    return 0;
}

int flight_has_begun(const struct limited_device *device)
{
    return device->governor.running;
}

int flight_lanes_begun(const struct limited_device *device)
{
    return (int) larger(__atomic_load_n(&device->lanes_begun, __ATOMIC_RELAXED), 1);
}

static void orphan(struct flight_lane *lane)
{
    static const char no_thread;

    lane->thread = &no_thread;
    __atomic_store_n(&lane->name, (uintptr_t) lane, __ATOMIC_RELAXED);
}

void flight_leave_stream(CUstream stream)
{
    FLIGHT_EACH(lane)
    if (lane->name == (uintptr_t) stream)
        orphan(lane);
}

void flight_end_stream(CUstream stream)
{
    FLIGHT_EACH(lane)
    if (lane->name == (uintptr_t) stream) {
        flight_close(lane, 0);
        if (!lane->count || (lane->is_open && flight_spent(lane) > lane->open.spent_ns)) {
            flight_drop(lane);
            continue;
        }
        lane->is_open = 0;
        orphan(lane);
    }
}

void flight_forget(CUcontext context)
{
    FLIGHT_EACH(lane)
    if (!context || !lane->context || lane->context == context)
        flight_drop(lane);
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
    for (unsigned i = 0; i < FLIGHT_LANES && flight_lanes[i].thread; i++)
        flight_lanes[i].name = 0;
}
