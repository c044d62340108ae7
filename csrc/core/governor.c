/* SPDX-License-Identifier: Apache-2.0 */
/* governor.c -- admits launches, and corrects their charges; see governor.h. */
#include "core/governor.h"
#include "core/number.h"

#define MILLISECOND INT64_C(1000000)

/* For how long time bought at once has to last: buying is rare, but the share stays even. */
#define CHUNK_OF_NS    (10 * MILLISECOND)
#define CHUNK_LEAST_NS (MILLISECOND / 5)
#define CHUNK_MOST_NS  MILLISECOND

/* For how much time an unused share is kept: less beside others, which have used it. The rest is
 * saved, and drawn while they have no work. */
#define KEEP_ALONE_NS  (1000 * MILLISECOND)
#define KEEP_BESIDE_NS (100 * MILLISECOND)

/* A pause lasts until the share of so much time has come in: streams that began together pause
 * together, and beside others the work runs in rows that are longer than their time slices. */
#define PAUSE_NS (3 * MILLISECOND)

/* While no other container has work, one whose streams work at the same time pauses only when it
 * owes some time: its streams overlap only as far as their work is queued ahead, since a host
 * launches in another order than the device works. So it runs for up to OWED_RUN_NS and then pauses
 * for up to OWED_PAUSE_NS. Too little of that gains nothing, and too much makes windows uneven. */
#define OWED_RUN_NS   (50 * MILLISECOND)
#define OWED_PAUSE_NS (80 * MILLISECOND)
#define OWED_LEAST_NS (10 * MILLISECOND)
#define OWED_MOST_NS  (25 * MILLISECOND)

/* Not for so long after work took longer than expected by more than this factor: then what is owed
 * may be many times as much as it seems. */
#define DOUBT_FACTOR 3
#define DOUBT_NS     ((uint64_t) (1000 * MILLISECOND))

/* What a launch that was never measured takes off that. */
#define UNMEASURED_NS (MILLISECOND / 10)

/* The clock's possible error about one row of pieces: it knows the part of the time that each
 * process had, and not which one had the device at a given moment. */
#define ROW_ERROR_NS (5 * MILLISECOND)

/* The same where it is known what others had: as much as runs at the row's ends. */
#define EXACT_ERROR_NS (MILLISECOND / 2)

/* And its error relative to the row's length: a device is idle while it switches from one process
 * to another, for a time that is not reported anywhere. */
#define ROW_ERROR_PART 8

/* The same for the model's guess about work of known cost. */
#define SURE_ERROR_PART 2

/* The same for work that is expected to take the mean of very different times. */
#define MIXED_ERROR_PART 32

/* The most that is carried from pieces to later ones. */
#define CARRIED_NS (20 * MILLISECOND)

/* Amount of work over which the overlap of streams is averaged. */
#define OVERLAP_NS (40 * MILLISECOND)

/* Length from which on a row shows how good expectations are. */
#define ROW_NS (100 * MILLISECOND)

/* For so long a process counts as using several streams after two had work at the same time. */
#define CROWDED_NS ((uint64_t) (1000 * MILLISECOND))

/* For so long costs are doubted after a row's charges were found to be far too low. */
#define SUSPECT_NS ((uint64_t) (100 * MILLISECOND))

/* Work published as in flight while it takes longer than expected. */
#define UNKNOWN_NS ((uint64_t) (2 * MILLISECOND))

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static uint32_t rate_of(const struct governor_share *share)
{
    uint64_t rate = share->own + (uint64_t) share->own * share->lent / CLOCK_WHOLE;

    if (rate > share->limit)
        rate = share->limit > share->own ? share->limit : share->own;
    return rate ? (uint32_t) rate : 1;
}

int64_t governor_chunk(const struct governor *governor, const struct governor_share *share)
{
    int64_t chunk = within(budget_part(CHUNK_OF_NS, rate_of(share)), CHUNK_LEAST_NS, CHUNK_MOST_NS);

    return governor->unlimited ? chunk
                               : within(budget_left(governor->shared), CHUNK_LEAST_NS, chunk);
}

static void publish(struct governor *governor)
{
    uint64_t busy = load(&governor->busy_ns);
    uint64_t paid = load(&governor->paid_ns);

    if (governor->running && paid < busy + UNKNOWN_NS &&
        (__atomic_load_n(&governor->guessing, __ATOMIC_RELAXED) ||
         load(&governor->late_ns) >= paid))
        paid = busy + UNKNOWN_NS;
    __atomic_store_n(&governor->work->finished, (uint32_t) (busy / WORK_UNIT_NS), __ATOMIC_RELAXED);
    __atomic_store_n(&governor->work->begun, (uint32_t) (paid / WORK_UNIT_NS), __ATOMIC_RELAXED);
}

/* The time that work of several streams takes together. */
static int64_t union_of(const struct governor *governor, int64_t ns)
{
    uint32_t overlap = __atomic_load_n(&governor->overlap, __ATOMIC_RELAXED);

    return overlap ? budget_part(ns, overlap) : ns;
}

/* Streams may run one after the other. */
static uint64_t together(const struct governor *governor, int64_t ahead_ns)
{
    return load(&governor->busy_ns) + (uint64_t) union_of(governor, ahead_ns);
}

/* Whether another stream keeps the device at work until *end_ns*, if *ns* more begins: the device
 * may have done most of that stream's work, so work beside it must fit in the time it has left. */
static int is_covered(const struct governor *governor, uint64_t end_ns, int64_t ns, uint64_t reach)
{
    uint64_t busy = load(&governor->busy_ns);
    int64_t beside = __atomic_load_n(&governor->beside_ns, __ATOMIC_RELAXED) + ns;

    return end_ns <= reach && reach > busy &&
           union_of(governor, beside) <= (int64_t) (reach - busy);
}

static void raise_paid(struct governor *governor, uint64_t end_ns)
{
    uint64_t paid = load(&governor->paid_ns);

    while (paid < end_ns && !__atomic_compare_exchange_n(&governor->paid_ns, &paid, end_ns, 1,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    if (paid >= end_ns)
        return;
    budget_charge(governor->shared, (int64_t) (end_ns - paid));
    publish(governor);
}

void governor_pay(struct governor *governor, uint64_t end_ns, int64_t ns)
{
    int64_t ahead = __atomic_add_fetch(&governor->ahead_ns, ns, __ATOMIC_RELAXED);
    uint64_t least = together(governor, ahead);

    if (end_ns > load(&governor->reach_ns))
        __atomic_store_n(&governor->reach_ns, end_ns, __ATOMIC_RELAXED);
    else
        __atomic_add_fetch(&governor->beside_ns, ns, __ATOMIC_RELAXED);
    raise_paid(governor, end_ns > least ? end_ns : least);
}

void governor_trust(struct governor *governor, int64_t ns)
{
    __atomic_add_fetch(&governor->busy_ns, (uint64_t) ns, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&governor->ahead_ns, ns, __ATOMIC_RELAXED);
    raise_paid(governor, load(&governor->busy_ns));
}

/* Randomized: in step with others' time slices, the same part of a slice would be measured again
 * and again. */
static int64_t pause_ns(const struct governor *governor)
{
    uint32_t seed = __atomic_load_n(&governor->pauses, __ATOMIC_RELAXED) * UINT32_C(2654435769);

    return PAUSE_NS - PAUSE_NS / 3 * (int64_t) (seed >> 16) / 65536;
}

static void begin_pause(struct governor *governor)
{
    if (!__atomic_exchange_n(&governor->paused, 1, __ATOMIC_RELAXED))
        __atomic_add_fetch(&governor->pauses, 1, __ATOMIC_RELAXED);
}

/* Whether a time that a process of the container has noted, 0 for never, is at most *ns* away: it
 * may be later than *now*, which was read before. */
static int is_recent(uint64_t noted_ns, uint64_t now, uint64_t ns)
{
    return noted_ns && noted_ns <= now + ns && now <= noted_ns + ns;
}

/* The budget at which a process begins to pause. */
static int64_t spent_at(const struct governor *governor, const struct governor_share *share,
                        uint64_t now)
{
    uint64_t crowded = load(&governor->shared->crowded_ns);
    int64_t unmeasured = __atomic_load_n(&governor->guesses, __ATOMIC_RELAXED) * UNMEASURED_NS;
    int64_t rate = smaller(rate_of(share), CLOCK_WHOLE);
    int64_t owed = smaller(budget_part(OWED_PAUSE_NS, (uint32_t) rate),
                           budget_part(OWED_RUN_NS, (uint32_t) (CLOCK_WHOLE - rate)));

    if ((share->beside && !share->spared) ||
        !__atomic_load_n(&governor->overlap, __ATOMIC_RELAXED) ||
        !is_recent(crowded, now, CROWDED_NS) ||
        is_recent(load(&governor->shared->doubted_ns), now, DOUBT_NS))
        return 0;
    owed = smaller(owed, OWED_MOST_NS) - unmeasured;
    return owed < OWED_LEAST_NS ? 0 : -owed;
}

int governor_buy(struct governor *governor, const struct governor_share *share, uint64_t end_ns,
                 int64_t ns, uint64_t now, uint64_t *until_ns)
{
    uint64_t least =
        together(governor, __atomic_load_n(&governor->ahead_ns, __ATOMIC_RELAXED) + ns);
    uint32_t rate = rate_of(share);
    int64_t budget, enough;

    budget_fill(governor->shared, rate, share->beside ? KEEP_BESIDE_NS : KEEP_ALONE_NS,
                KEEP_ALONE_NS, now);
    budget = budget_left(governor->shared);
    if (share->spared && budget < budget_part(PAUSE_NS, rate)) {
        budget_draw(governor->shared, budget_part(PAUSE_NS, rate) - budget);
        budget = budget_left(governor->shared);
    }
    if (budget <= spent_at(governor, share, now))
        begin_pause(governor);
    enough = budget_part(pause_ns(governor), rate);
    if (budget >= enough)
        __atomic_store_n(&governor->paused, 0, __ATOMIC_RELAXED);
    if ((end_ns > least ? end_ns : least) <= load(&governor->paid_ns) || governor->unlimited ||
        !__atomic_load_n(&governor->paused, __ATOMIC_RELAXED) ||
        is_covered(governor, end_ns, ns, load(&governor->reach_ns))) {
        governor_pay(governor, end_ns, ns);
        return 1;
    }
    *until_ns = now + (uint64_t) budget_time_for(larger(enough - budget, 0), rate);
    return 0;
}

int64_t governor_in_flight(const struct governor *governor)
{
    uint64_t certain = latest(load(&governor->busy_ns), load(&governor->late_ns));

    return larger((int64_t) (load(&governor->paid_ns) - certain), 0);
}

int governor_join(struct governor *governor, const void *stream, uint64_t end_ns, int64_t ns)
{
    if (__atomic_load_n(&governor->overdue_of, __ATOMIC_RELAXED) == stream ||
        !is_covered(governor, end_ns, ns, load(&governor->overdue_ns)))
        return 0;
    governor_pay(governor, end_ns, ns);
    return 1;
}

uint64_t governor_debt_time(const struct governor *governor, const struct governor_share *share,
                            int streams)
{
    int64_t ahead = governor_in_flight(governor);
    int64_t debt = -budget_left(governor->shared);

    /* As long as the streams' overlap is unknown, they may all run at the same time; and a guess
     * about one stream is no reason for another to wait. */
    if (streams > 1 && __atomic_load_n(&governor->guessing, __ATOMIC_RELAXED))
        debt -= ahead;
    else if (!__atomic_load_n(&governor->overlap, __ATOMIC_RELAXED))
        debt -= ahead - ahead / streams;
    return (uint64_t) budget_time_for(larger(debt, 0), rate_of(share));
}

/* --- what work took --------------------------------------------------------------------------- */

static int64_t part_of(int64_t ns, uint32_t part)
{
    return (int64_t) ((double) ns * part / CLOCK_WHOLE);
}

/* The time for which work is known to have run, and the most for which it can have run. */
struct bounds {
    int64_t least, most;
};

static struct bounds bounds_of(const struct governor_piece *piece)
{
    uint64_t begin = piece->given_ns > piece->from_ns ? piece->given_ns : piece->from_ns;

    if (piece->crowded)
        begin = piece->until_ns; /* the union of the streams ran, perhaps not this piece */

    return (struct bounds) {
        piece->until_ns > begin ? (int64_t) (piece->until_ns - begin) : 0,
        piece->until_ns > piece->from_ns ? (int64_t) (piece->until_ns - piece->from_ns) : 0};
}

/* Beside others: the expected time, by what long rows have shown. */
static int64_t expected_beside(const struct governor *governor, const struct governor_piece *piece)
{
    uint32_t ratio = governor->ratio ? governor->ratio : CLOCK_WHOLE;

    return piece->guessed || piece->crowded ? piece->expected_ns
                                            : part_of(piece->expected_ns, ratio);
}

/* Within the clock's present bounds. */
static int64_t within_rate(int64_t expected_ns, struct bounds bounds, uint32_t rate)
{
    expected_ns = within(expected_ns, part_of(bounds.least, rate) - ROW_ERROR_NS,
                         part_of(bounds.most, rate) + ROW_ERROR_NS);
    return within(expected_ns, 0, bounds.most);
}

/* Launches of a shape may take different times, and are expected to take the mean of those. What
 * the bounds of short ones leave of it is charged to long ones. */
static int64_t taken_of(struct governor *governor, const struct governor_piece *piece,
                        const struct clock_view *clock, int alone, uint64_t now)
{
    struct bounds bounds = bounds_of(piece);
    int carries = piece->mixed || (!alone && !piece->guessed && !piece->crowded);
    int64_t expected = alone ? piece->expected_ns : expected_beside(governor, piece);
    int64_t taken;

    if (carries)
        expected += governor->carried_ns;
    taken = alone ? within(expected, bounds.least, bounds.most)
                  : within_rate(expected, bounds,
                                clock_rate(clock, piece->from_ns, piece->until_ns, now));
    if (carries)
        governor->carried_ns = within(expected - taken, -CARRIED_NS, CARRIED_NS);
    return taken;
}

static void grow(struct governor *governor, int64_t ns)
{
    __atomic_add_fetch(&governor->busy_ns, (uint64_t) ns, __ATOMIC_RELAXED);
}

/* Learn how much time the union of streams recently took, relative to the sum of their expected
 * times. */
static void learn_overlap(struct governor *governor, int64_t apart_ns, int64_t together_ns,
                          uint64_t now)
{
    double overlap;

    governor->apart_ns += apart_ns;
    governor->together_ns += together_ns;
    if (governor->apart_ns < OVERLAP_NS && governor->together_ns < OVERLAP_NS)
        return;
    if (governor->together_ns > DOUBT_FACTOR * governor->apart_ns ||
        governor->apart_ns > DOUBT_FACTOR * governor->together_ns)
        __atomic_store_n(&governor->shared->doubted_ns, now, __ATOMIC_RELAXED);
    overlap = (double) governor->together_ns * CLOCK_WHOLE / (double) larger(governor->apart_ns, 1);
    overlap = overlap < CLOCK_WHOLE / 16.0 ? CLOCK_WHOLE / 16.0 : overlap;
    overlap = overlap > CLOCK_WHOLE * 16.0 ? CLOCK_WHOLE * 16.0 : overlap;
    __atomic_store_n(&governor->overlap, (uint32_t) overlap, __ATOMIC_RELAXED);
    governor->apart_ns /= 2;
    governor->together_ns /= 2;
}

static uint64_t begin_since(uint64_t since_ns, uint64_t from_ns)
{
    return since_ns && since_ns < from_ns ? since_ns : from_ns;
}

int governor_alone(const struct clock_view *clock, uint64_t since_ns, uint64_t from_ns,
                   uint64_t until_ns, uint64_t now)
{
    return clock_alone(clock, begin_since(since_ns, from_ns), until_ns, now);
}

/* Remember a piece until it is known whether it ran alone for some of its time; see grant(). */
static void remember(struct governor *governor, const struct governor_piece *piece,
                     int64_t taken_ns)
{
    unsigned next = (governor->finished_first + governor->finished_count) % GOVERNOR_FINISHED;
    uint64_t begin = latest(piece->given_ns, piece->from_ns);

    if (piece->crowded || begin >= piece->until_ns ||
        taken_ns >= (int64_t) (piece->until_ns - begin))
        return;
    if (governor->finished_count == GOVERNOR_FINISHED)
        governor->finished_first = (governor->finished_first + 1) % GOVERNOR_FINISHED;
    else
        governor->finished_count++;
    governor->finished[next] = (struct governor_finished) {begin_since(piece->since_ns, begin),
                                                           begin, piece->until_ns, taken_ns};
}

/* Only the clock knows what several streams take together: their expectations were perhaps learned
 * while they waited for each other. Without a clock the device counts as their own. */
static int counts_as_own(const struct governor *governor, const struct governor_piece *piece,
                         const struct clock_view *clock)
{
    return !clock->valid && governor->crowded_ns &&
           piece->until_ns < governor->crowded_ns + CROWDED_NS;
}

int64_t governor_finish(struct governor *governor, const struct governor_piece *piece,
                        const struct clock_view *clock, uint64_t now)
{
    int alone = governor_alone(clock, piece->since_ns, piece->from_ns, piece->until_ns, now);
    int64_t taken = taken_of(governor, piece, clock, alone, now);
    struct busy_piece busy = {
        .from_ns = piece->from_ns,
        .given_ns = piece->given_ns,
        .until_ns = piece->until_ns,
        .taken_ns = taken,
        .joins = piece->joins,
        .guessed = piece->guessed,
        .mixed = piece->mixed,
        .unsure = !alone && !piece->sure,
    };
    int64_t grown;

    if (piece->crowded) {
        governor->crowded_ns = piece->until_ns;
        __atomic_store_n(&governor->shared->crowded_ns, piece->until_ns, __ATOMIC_RELAXED);
    }
    busy.certain = alone || counts_as_own(governor, piece, clock);
    grown = busy_add(&governor->busy, &busy);
    grow(governor, grown);
    if (!alone)
        remember(governor, piece, taken);
    if (!piece->guessed)
        learn_overlap(governor, piece->expected_ns, grown, now);
    return taken;
}

void governor_reset_overlap(struct governor *governor)
{
    __atomic_store_n(&governor->overlap, 0, __ATOMIC_RELAXED);
    governor->apart_ns = governor->together_ns = 0;
}

int64_t governor_running(const struct clock_view *clock, uint64_t from_ns, uint64_t now)
{
    int64_t sharers = clock_sharers(clock);
    int64_t ran = now > from_ns ? (int64_t) (now - from_ns) : 0;

    return sharers > 1 ? larger(ran / sharers - ROW_ERROR_NS, 0) : ran;
}

/* Discount the clock's error from a ratio: none of it counts within the error, all of it from twice
 * the error on, linear in between, so that no row makes a difference by a hair. */
static double beyond_error(double ratio)
{
    double off = ratio - CLOCK_WHOLE;
    double error = CLOCK_WHOLE / ROW_ERROR_PART;
    double size = off < 0 ? -off : off;

    if (size >= 2 * error)
        return ratio;
    if (size <= error)
        return CLOCK_WHOLE;
    return CLOCK_WHOLE + (off < 0 ? -2 : 2) * (size - error);
}

/* Beside others, compare the charges of a long row with the clock, which is right about long rows.
 * While rows are short, the ratio becomes doubtful again. */
static void learn_ratio(struct governor *governor)
{
    struct governor_row *row = &governor->row;
    double ratio = governor->ratio ? governor->ratio : CLOCK_WHOLE;
    double seen;

    if (row->length_ns < ROW_NS)
        return;
    governor->doubt_ns = 0;
    if (!row->guessed && !row->crowded && row->given_ns >= row->length_ns - row->length_ns / 8) {
        seen = beyond_error(ratio * (double) row->share_ns / (double) larger(row->counted_ns, 1));
        seen = seen < 4.0 * CLOCK_WHOLE ? seen : 4.0 * CLOCK_WHOLE;
        ratio += (seen - ratio) / 2;
        governor->ratio = ratio < CLOCK_WHOLE / 8.0 ? CLOCK_WHOLE / 8 : (uint32_t) ratio;
    }
    row->length_ns = row->given_ns = row->counted_ns = row->share_ns = row->guessed = 0;
}

/* Charge a piece at least the time for which no other process had work: the device did this
 * process's work then, as is known once the clock covers that time. */
static void grant(struct governor *governor, const struct clock_view *clock, uint64_t now)
{
    while (governor->finished_count) {
        const struct governor_finished *piece = &governor->finished[governor->finished_first];
        int64_t certain;

        if (clock->valid && !clock_covers(clock, piece->until_ns) &&
            now - piece->until_ns < CLOCK_STALE_NS)
            return;
        certain =
            (int64_t) clock_alone_time(clock, piece->since_ns, piece->begin_ns, piece->until_ns);
        grow(governor, larger(certain - piece->taken_ns, 0));
        governor->finished_first = (governor->finished_first + 1) % GOVERNOR_FINISHED;
        governor->finished_count--;
    }
}

/* By how much the clock may be wrong about a row. */
static int64_t error_of(const struct governor_row *row)
{
    if (row->crowded)
        return 0;
    if (row->guesses)
        return ROW_ERROR_NS + row->whole_ns / (row->unsure ? ROW_ERROR_PART : SURE_ERROR_PART);
    return EXACT_ERROR_NS + row->whole_ns / (row->mixed ? MIXED_ERROR_PART : ROW_ERROR_PART);
}

/* Review a bin, once all that ran in it is known, and what others had meanwhile. In a row without a
 * gap the clock corrects the charges; after a gap the device may serve another process or not. */
static void review(struct governor *governor, uint64_t number)
{
    struct governor_row *row = &governor->row;
    int64_t grown;
    const struct busy_bin *bin = busy_review(&governor->busy, number, &row->later_ns, &grown);
    int64_t least, most, error, correction = 0;

    if (!bin || bin->joined != UINT64_MAX) {
        governor->doubt_ns += row->length_ns;
        if (governor->doubt_ns > ROW_NS && governor->ratio) {
            governor->ratio = (governor->ratio + CLOCK_WHOLE) / 2;
            governor->doubt_ns = 0;
        }
        *row = (struct governor_row) {0};
        grow(governor, grown);
        return;
    }
    least = part_of(busy_length(bin->given), bin->rate);
    most = part_of(busy_length(bin->parts), bin->rate);
    row->over_ns += (int64_t) bin->counted_ns - most;
    row->under_ns += least - (int64_t) bin->counted_ns;
    row->crowded |= bin->elapsed_ns > busy_length(bin->parts) + busy_length(bin->parts) / 8;
    row->guesses += !bin->exact;
    row->mixed |= bin->mixed;
    row->unsure |= bin->unsure || bin->guessed || bin->mixed;
    error = error_of(row);
    if (!row->crowded && !row->guesses && row->under_ns > (error + EXACT_ERROR_NS) / 2)
        governor->suspect_ns = (number + 1) * BUSY_BIN_NS + SUSPECT_NS;
    if (row->over_ns > error)
        correction = error - row->over_ns;
    else if (row->under_ns > error)
        correction = row->under_ns - error;
    row->over_ns += correction;
    row->under_ns -= correction;
    row->whole_ns += bin->rate < CLOCK_WHOLE ? busy_length(bin->parts) : 0;
    row->length_ns += busy_length(bin->parts);
    row->given_ns += busy_length(bin->given);
    row->counted_ns += bin->counted_ns;
    row->share_ns += most;
    row->guessed |= bin->guessed;
    learn_ratio(governor);
    grow(governor, grown + correction);
}

static uint64_t bins_from(uint64_t from_ns, uint64_t until_ns, uint64_t most_ns)
{
    return latest(from_ns, until_ns > most_ns ? until_ns - most_ns : 0) / BUSY_BIN_NS;
}

_Static_assert(BUSY_BIN_NS == OTHERS_CELL_NS, "a cell says of one bin what others had");

/* This process's part of a bin: the time that others did not have, or else the clock's rate. */
static uint32_t rate_of_bin(const struct clock_view *clock, uint64_t begin_ns, uint64_t now,
                            int *exact)
{
    uint64_t end_ns = begin_ns + BUSY_BIN_NS;
    struct clock_others others;
    double rate;

    *exact = clock_others(clock, begin_ns, end_ns, &others);
    if (!*exact || others.unsure_ns) {
        uint32_t by_clock = clock_rate(clock, begin_ns, end_ns, now);

        *exact = *exact && clock_had_little(&others, by_clock);
        if (!*exact)
            return by_clock;
    }
    if (!others.had_ns)
        return CLOCK_WHOLE;
    if (others.had_ns >= others.at_work_ns)
        return CLOCK_WHOLE / CLOCK_SHARERS;
    rate = (double) (others.at_work_ns - others.had_ns) / (double) others.at_work_ns;
    return (uint32_t) larger((int64_t) (rate * CLOCK_WHOLE), CLOCK_WHOLE / CLOCK_SHARERS);
}

/* Record the clock's values of each bin that it has covered since the last call. */
static void read_clock(struct governor *governor, const struct clock_view *clock, uint64_t now)
{
    uint64_t until_ns = clock->valid ? clock_known_until(clock) : governor->known_ns;
    uint64_t number = bins_from(governor->known_ns, until_ns, CLOCK_STALE_NS);

    for (; (number + 1) * BUSY_BIN_NS <= until_ns; number++) {
        int exact;
        uint32_t rate = rate_of_bin(clock, number * BUSY_BIN_NS, now, &exact);

        busy_know(&governor->busy, number, rate, exact);
    }
    governor->known_ns = number * BUSY_BIN_NS;
}

/* Review the bins before *since_ns*: work in flight since then may yet be found to have run in
 * later ones. */
static void review_all(struct governor *governor, uint64_t since_ns)
{
    uint64_t until_ns = since_ns < governor->known_ns ? since_ns : governor->known_ns;
    uint64_t number;

    until_ns = until_ns < governor->busy.until_ns ? until_ns : governor->busy.until_ns;
    number = bins_from(governor->reviewed_ns, governor->known_ns, (BUSY_BINS - 1) * BUSY_BIN_NS);
    for (; (number + 1) * BUSY_BIN_NS <= until_ns; number++)
        review(governor, number);
    governor->reviewed_ns = number * BUSY_BIN_NS;
}

void governor_settle(struct governor *governor, const struct clock_view *clock,
                     const struct governor_flight *flight, uint64_t now)
{
    uint64_t paid = load(&governor->paid_ns);
    uint64_t end_ns, least;

    progress_publish(&governor->progress, &governor->busy, flight->since_ns, now);
    read_clock(governor, clock, now);
    grant(governor, clock, now);
    review_all(governor, flight->since_ns);
    governor->running = flight->running;
    __atomic_store_n(&governor->guessing, flight->guessing, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->guesses, flight->guesses, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->ahead_ns, flight->ahead_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->reach_ns, flight->end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->beside_ns, flight->ahead_ns - flight->longest_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->overdue_of, flight->overdue_of, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->overdue_ns, flight->overdue_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&governor->late_ns, flight->late_ns, __ATOMIC_RELAXED);
    least = together(governor, flight->ahead_ns);
    end_ns = flight->end_ns > least ? flight->end_ns : least;
    while (!__atomic_compare_exchange_n(&governor->paid_ns, &paid, end_ns, 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    if (paid != end_ns)
        budget_charge(governor->shared, (int64_t) (end_ns - paid));
    publish(governor);
}

void governor_waits(struct governor *governor)
{
    __atomic_add_fetch(&governor->shared->waits, 1, __ATOMIC_RELAXED);
}

void governor_waited(struct governor *governor, uint64_t waited_ns)
{
    __atomic_add_fetch(&governor->shared->waited_ns, waited_ns, __ATOMIC_RELAXED);
}
