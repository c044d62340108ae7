/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.c -- samples, from when their pieces are done until their costs are learned; see
 * sampling.h. */
#include "shim/cuda/work/sampling.h"
#include "core/number.h"
#include "shim/cuda/work/limited_devices.h"

#define LAUNCH_NS \
    INT64_C(5000) /* most time on the way to the device: beyond it the device works already */

enum {
    MARKS_LEAST = 3, /* measurements of marks before the shortest of them counts */
    CHANGED = 2, /* after work that took longer than expected: so many times as long as before */
    UNSURE_PART = 4, /* this part of a sample may be a guess at what others had */
    LEARNING = 256,
};

/* The time of a mark right behind another mark, and how often that was measured, up to
 * MARKS_LEAST. */
static int64_t mark_ns;
static int marks_measured;

/* Samples whose time the arbiter's clock does not cover yet. */
static struct sample {
    struct limited_device *device;
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
int64_t sampling_mark_ns(void)
{
    return marks_measured == MARKS_LEAST ? mark_ns : 0;
}

/* A sample is done. If the device was idle, the time in which the launch was on its way to the
 * driver lies between its mark and its beginning. */
void sampling_note(const struct flight_lane *lane, const struct flight_piece *piece, uint64_t from,
                   uint64_t until, int untimed)
{
    uint64_t armed = piece->opened_ns > from ? piece->opened_ns : from;
    int64_t gap = larger((int64_t) (piece->given_ns - armed) - sampling_mark_ns(), 0);
    uint64_t ended = lane->device->ended_ns;
    struct sample sample = {lane->device,
                            piece->cost,
                            piece->key,
                            lane->done_ns,
                            from,
                            until,
                            (int64_t) (until - from) - sampling_mark_ns(),
                            0,
                            0,
                            piece->given_ns <= from,
                            piece->crowded,
                            0};

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
    sample.changed = lane->surprise && sample.taken_ns > CHANGED * (int64_t) piece->cost->ns;
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
        costs_note_first(&launch_costs, piece->cost, &piece->key, sample.low_ns);
    piece->cost->pending = 0;
}

/* Beside others, work that found the device idle waited for the turn of others before it began. */
static void learn(const struct sample *sample, const struct clock_view *clock, uint64_t now)
{
    uint32_t rate = clock_rate(clock, sample->from_ns, sample->until_ns, now);
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
        (others.unsure_ns <= sample->taken_ns / UNSURE_PART || clock_had_little(&others, rate)))
        known.own_ns = larger(sample->taken_ns - others.had_ns, 1);
    costs_learn(&launch_costs, sample->cost, &sample->key, &known);
    if (sample->changed)
        governor_reset_overlap(&sample->device->governor);
}

void sampling_learn(const struct limited_device *device, const struct clock_view *clock,
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

void sampling_after_fork(void)
{
    marks_measured = 0;
    learning_count = 0;
}
