/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c -- writes and decodes progress points; see progress.h. */
#include "core/progress.h"
#include "core/number.h"

#define GAP_NS UINT64_C(100000) /* a shorter gap between pieces of work is not published */

/* Write a point into the current word. */
static void write_point(struct progress *progress, uint64_t at_ns, int begins)
{
    uint64_t word =
        at_ns / WORK_UNIT_NS << PROGRESS_TIME_SHIFT | (uint32_t) (progress->done_ns / WORK_UNIT_NS);

    word |= begins ? PROGRESS_BEGINS : 0;
    word |= progress->sure ? PROGRESS_SURE : 0;
    __atomic_store_n(&progress->words[progress->at], word, __ATOMIC_RELAXED);
}

/* Keep the current word; the next point goes into the one after it. */
static void advance(struct progress *progress)
{
    progress->at = (progress->at + 1) % PROGRESS_WORDS;
}

static void begin(struct progress *progress, uint64_t from_ns)
{
    progress->begin_ns = from_ns;
    progress->sure = 1;
    advance(progress);
    write_point(progress, from_ns, 1);
    advance(progress);
}

void progress_add(struct progress *progress, uint64_t from_ns, uint64_t until_ns, int64_t taken_ns,
                  int sure)
{
    if (!progress->words)
        return;
    if (from_ns > progress->end_ns + GAP_NS || !progress->end_ns) {
        begin(progress, from_ns);
    } else if (progress->end_ns - progress->begin_ns >= PROGRESS_STEP_NS ||
               sure != progress->sure) {
        progress->begin_ns = progress->end_ns;
        advance(progress);
    }
    progress->sure = sure;
    progress->done_ns += taken_ns > 0 ? (uint64_t) taken_ns : 0;
    if (until_ns > progress->end_ns)
        progress->end_ns = until_ns;
    write_point(progress, progress->end_ns, 0);
}

/* Work that is not published yet. */
struct span {
    uint64_t from_ns, until_ns;
    int64_t taken_ns;
    int sure;
};

static void publish_span(struct progress *progress, struct span *span)
{
    if (span->until_ns > span->from_ns) {
        progress_add(progress, span->from_ns, span->until_ns, span->taken_ns, span->sure);
        progress->total_ns += span->taken_ns;
    }
    *span = (struct span) {0};
}

/* Add the unpublished work of a bin to *span*, and publish the span at each end of a piece: it is
 * unknown when within a piece the device worked for this process. */
static void publish_bin(struct progress *progress, const struct busy_bin *bin, uint64_t until_ns,
                        struct span *span)
{
    uint64_t begin_ns = bin->number * BUSY_BIN_NS;
    int64_t left = bin->counted_ns;
    int overlaps = bin->elapsed_ns > busy_length(bin->parts) &&
                   bin->taken_ns - bin->largest_ns > bin->taken_ns / 8;
    uint64_t parts = bin->parts;

    if (progress->shown_ns > begin_ns) {
        parts &= UINT64_MAX << (progress->shown_ns - begin_ns) / BUSY_PART_NS;
        left -= progress->counted_ns;
    }
    for (; parts; parts &= parts - 1) {
        unsigned part = (unsigned) __builtin_ctzll(parts);
        uint64_t from = latest(begin_ns + part * BUSY_PART_NS, progress->shown_ns);
        int64_t taken = left / __builtin_popcountll(parts);
        int sure = !overlaps && !(bin->unsure >> part & 1);

        if (span->until_ns && (from > span->until_ns + GAP_NS || sure != span->sure))
            publish_span(progress, span);
        if (!span->until_ns) {
            span->from_ns = from;
            span->sure = sure;
        }
        span->until_ns = least(begin_ns + (part + 1) * BUSY_PART_NS, until_ns);
        span->taken_ns += taken;
        left -= taken;
        if (bin->ends >> part & 1)
            publish_span(progress, span);
    }
}

/* The unpublished device time in the bins from *number* on, the first of which may be published in
 * part. */
static int64_t unpublished_in(const struct progress *progress, const struct busy *busy,
                              uint64_t number)
{
    int64_t found = -progress->counted_ns;

    for (; number * BUSY_BIN_NS < busy->until_ns; number++)
        if (busy->bins[number % BUSY_BINS].number == number)
            found += busy->bins[number % BUSY_BINS].counted_ns;
    return found;
}

void progress_publish(struct progress *progress, const struct busy *busy, uint64_t since_ns,
                      uint64_t now)
{
    uint64_t until_ns = latest(since_ns, now > PROGRESS_HELD_NS ? now - PROGRESS_HELD_NS : 0);
    uint64_t end = (least(until_ns, busy->until_ns) + BUSY_BIN_NS - 1) / BUSY_BIN_NS;
    uint64_t number = progress->shown_ns / BUSY_BIN_NS;
    struct span span = {0};

    if (!progress->words)
        return;
    number = latest(number, end > BUSY_BINS ? end - BUSY_BINS : 0);
    if (number < end)
        span.taken_ns =
            busy->total_ns - progress->total_ns - unpublished_in(progress, busy, number);
    for (; number < end; number++) {
        const struct busy_bin *bin = &busy->bins[number % BUSY_BINS];
        uint64_t end_ns = least((number + 1) * BUSY_BIN_NS, busy->until_ns);

        if (end_ns > until_ns)
            break;
        if (bin->number == number)
            publish_bin(progress, bin, busy->until_ns, &span);
        progress->shown_ns = end_ns;
        progress->counted_ns = bin->number == number && end_ns % BUSY_BIN_NS ? bin->counted_ns : 0;
    }
    publish_span(progress, &span);
}

struct progress_point progress_point(uint64_t word, uint64_t now)
{
    return (struct progress_point) {region_moment(word, PROGRESS_TIME_SHIFT, now), (uint32_t) word,
                                    (word & PROGRESS_BEGINS) != 0, (word & PROGRESS_SURE) != 0};
}
