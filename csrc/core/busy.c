/* SPDX-License-Identifier: Apache-2.0 */
/* busy.c -- computes the union of busy time in bins; see busy.h. */
#include "core/busy.h"
#include "core/number.h"

#include <stddef.h>

/* The part of *taken_ns* that falls on *length_ns* of the *whole_ns* that it took. */
static int64_t part_of(int64_t taken_ns, uint64_t length_ns, uint64_t whole_ns)
{
    return (int64_t) ((double) taken_ns * (double) length_ns / (double) whole_ns);
}

static uint64_t parts_between(uint64_t from_ns, uint64_t until_ns)
{
    unsigned first = (unsigned) (from_ns % BUSY_BIN_NS / BUSY_PART_NS);
    uint64_t last = (until_ns - 1) % BUSY_BIN_NS / BUSY_PART_NS;
    uint64_t count = last - first + 1;

    return (count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1) << first;
}

/* The parts of a bin that lie entirely between the two times. */
static uint64_t whole_parts_between(uint64_t from_ns, uint64_t until_ns)
{
    from_ns = (from_ns + BUSY_PART_NS - 1) / BUSY_PART_NS * BUSY_PART_NS;
    until_ns = until_ns / BUSY_PART_NS * BUSY_PART_NS;
    return from_ns < until_ns ? parts_between(from_ns, until_ns) : 0;
}

/* The time of a bin that the union takes: no more than the process could have where something ran,
 * or than pieces took on average while they ran; and no less than is certain. */
static int64_t union_of(const struct busy_bin *bin)
{
    int64_t covered = busy_length(bin->parts);
    int64_t taken = bin->taken_ns;

    if (covered < bin->elapsed_ns)
        taken = smaller(taken, larger(bin->rate ? covered * bin->rate / BUSY_WHOLE : covered,
                                      taken * covered / bin->elapsed_ns));
    return larger(taken, busy_length(bin->certain));
}

static struct busy_bin *bin_of(struct busy *busy, uint64_t number)
{
    struct busy_bin *bin = &busy->bins[number % BUSY_BINS];

    if (bin->number != number)
        *bin = (struct busy_bin) {.number = number};
    return bin;
}

/* How much of what the piece is taken to have had up to here it may have had later. */
static int64_t movable(const struct busy_piece *piece, uint64_t at_ns)
{
    int64_t left = (int64_t) (piece->until_ns - at_ns);
    int64_t had =
        part_of(piece->taken_ns, at_ns - piece->from_ns, piece->until_ns - piece->from_ns);

    return within(left - (piece->taken_ns - had), 0, had);
}

static int64_t add_to_bin(struct busy_bin *bin, const struct busy_piece *piece, uint64_t from_ns,
                          uint64_t until_ns)
{
    uint64_t given = piece->given_ns > from_ns ? piece->given_ns : from_ns;
    uint64_t joined = from_ns;
    uint32_t taken =
        (uint32_t) part_of(piece->taken_ns, until_ns - from_ns, piece->until_ns - piece->from_ns);
    int64_t before = bin->counted_ns;

    if (piece->joins && from_ns == piece->from_ns)
        joined = joined / BUSY_PART_NS * BUSY_PART_NS;
    bin->parts |= parts_between(from_ns, until_ns);
    bin->given |= whole_parts_between(given, until_ns);
    bin->joined |= whole_parts_between(joined, until_ns);
    if (piece->certain)
        bin->certain |= whole_parts_between(given, until_ns);
    bin->elapsed_ns += (uint32_t) (until_ns - from_ns);
    bin->taken_ns += taken;
    bin->largest_ns = taken > bin->largest_ns ? taken : bin->largest_ns;
    bin->guessed |= piece->guessed;
    bin->mixed |= piece->mixed;
    if (until_ns == piece->until_ns)
        bin->ends |= parts_between(until_ns - 1, until_ns);
    else
        bin->movable_ns += movable(piece, until_ns);
    if (piece->unsure)
        bin->unsure |= parts_between(from_ns, until_ns);
    bin->counted_ns = (uint32_t) union_of(bin);
    return bin->counted_ns - before;
}

/* The beginning of the oldest bin. */
static uint64_t oldest_of(uint64_t newest_ns)
{
    uint64_t number = newest_ns / BUSY_BIN_NS;

    return number >= BUSY_BINS - 1 ? (number - (BUSY_BINS - 1)) * BUSY_BIN_NS : 0;
}

int64_t busy_add(struct busy *busy, const struct busy_piece *piece)
{
    uint64_t from = piece->from_ns;
    uint64_t newest = piece->until_ns > busy->until_ns ? piece->until_ns : busy->until_ns;
    uint64_t oldest = oldest_of(newest);
    int64_t grown = 0;

    if (piece->until_ns <= from)
        return 0;
    if (from < oldest) {
        uint64_t end = piece->until_ns < oldest ? piece->until_ns : oldest;
        uint64_t begin = from > busy->until_ns ? from : busy->until_ns;

        if (begin < end)
            grown += part_of(piece->taken_ns, end - begin, piece->until_ns - from);
        from = end;
    }
    while (from < piece->until_ns) {
        uint64_t end = (from / BUSY_BIN_NS + 1) * BUSY_BIN_NS;

        end = end < piece->until_ns ? end : piece->until_ns;
        grown += add_to_bin(bin_of(busy, from / BUSY_BIN_NS), piece, from, end);
        from = end;
    }
    busy->until_ns = newest;
    busy->total_ns += grown;
    return grown;
}

void busy_know(struct busy *busy, uint64_t number, uint32_t rate, int exact)
{
    struct busy_bin *bin = bin_of(busy, number);

    bin->rate = rate;
    bin->exact = exact;
}

/* The time that pieces of several streams took is spread over all the time in which each may have
 * run, so at first it may exceed what the process could have. The excess ran later, while the
 * device still had work. With the whole device, it did so only as far as pieces that go on may have
 * had their time later; the rest ran at the same time. */
const struct busy_bin *busy_review(struct busy *busy, uint64_t number, int64_t *later_ns,
                                   int64_t *grown_ns)
{
    struct busy_bin *bin = &busy->bins[number % BUSY_BINS];
    int64_t before = bin->counted_ns;
    int64_t all, most;

    *grown_ns = 0;
    if (bin->number != number || !bin->parts || !bin->rate)
        return NULL;
    all = (int64_t) bin->taken_ns + *later_ns;
    most = busy_length(bin->parts) * bin->rate / BUSY_WHOLE;
    bin->counted_ns = (uint32_t) larger(union_of(bin), smaller(all, most));
    *later_ns = larger(all - (int64_t) bin->counted_ns, 0);
    if (bin->rate >= BUSY_WHOLE)
        *later_ns = smaller(*later_ns, bin->movable_ns);
    *grown_ns = bin->counted_ns - before;
    return bin;
}
