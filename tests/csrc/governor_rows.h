/* SPDX-License-Identifier: Apache-2.0 */
/* governor_rows.h -- a governor for tests: it buys work, finishes it, and compares it with a clock.
 *
 * A row is work without a gap, while another container shares the device. begin() comes first.
 */
#ifndef PYVGPU_TESTS_GOVERNOR_ROWS_H
#define PYVGPU_TESTS_GOVERNOR_ROWS_H

#include "check.h"
#include "core/governor.h"

#include <string.h>

#define MS   INT64_C(1000000)
#define HALF (CLOCK_WHOLE / 2)
#define BIN  ((int64_t) BUSY_BIN_NS)
#define PART ((int64_t) BUSY_PART_NS)

#define ROW_ERROR_NS (5 * MS)
#define FRACTIONS_NS (MS / 50) /* of the clock's rate in each bin */

static const uint64_t start = 1000 * MS;
static const uint64_t row_start = 8000 * BUSY_BIN_NS; /* two seconds, where a bin begins */
static const struct governor_share half = {.own = HALF, .limit = HALF};
static const struct clock_view no_clock;

static struct usage_compute shared;
static struct usage_work work;
static struct governor governor;
static struct clock_view view;

static inline void begin(void)
{
    memset(&shared, 0, sizeof(shared));
    memset(&work, 0, sizeof(work));
    memset(&view, 0, sizeof(view));
    memset(&governor, 0, sizeof(governor));
    governor.shared = &shared;
    governor.work = &work;
    shared.refilled_ns = start;
    shared.budget_ns = BUDGET_START_NS;
}

static inline int buy_until(int64_t end_ns, int64_t ns, uint64_t now, uint64_t *until)
{
    return governor_buy(&governor, &half, (uint64_t) end_ns, ns, now, until);
}

static inline int buy(int64_t end_ns, int64_t ns)
{
    uint64_t until;

    return buy_until(end_ns, ns, start, &until);
}

static inline void finish_at(uint64_t from_ns, uint64_t until_ns, int64_t expected_ns)
{
    struct governor_piece piece = {from_ns, from_ns, until_ns, expected_ns, .joins = 1};

    governor_finish(&governor, &piece, &view, until_ns);
}

static inline int64_t taken(struct governor_piece piece)
{
    return governor_finish(&governor, &piece, &view, piece.until_ns);
}

/* Nothing is in flight. */
static inline void settle(uint64_t now)
{
    governor_settle(&governor, &view, &(struct governor_flight) {.since_ns = now}, now);
}

static inline int is_near(int64_t ns, int64_t other, int64_t margin)
{
    return ns >= other - margin && ns <= other + margin;
}

/* A clock up to *beat_ns*. Two containers share the device from *divided_ns* on. */
static inline struct clock_file page_of(uint64_t divided_ns, uint64_t beat_ns)
{
    struct clock_file page = {
        .header = {.magic = CLOCK_MAGIC, .layout = CLOCK_LAYOUT, .size = CLOCK_PAGE}};
    uint64_t first = beat_ns - 200 * 5 * (uint64_t) MS;

    page.newest = 200;
    for (uint32_t i = 0; i <= page.newest; i++) {
        uint64_t at = first + i * 5 * (uint64_t) MS;

        page.samples[i].at_ns = page.beat_ns = at;
        page.samples[i].share_ns = page.share_ns =
            at < divided_ns ? at : divided_ns + (at - divided_ns) / 2;
    }
    page.busy = 2;
    page.tenants = 2;
    return page;
}

static inline void read_clock(uint64_t divided_ns, uint64_t beat_ns)
{
    struct clock_file page = page_of(divided_ns, beat_ns);

    clock_evaluate(&view, &page, beat_ns);
    CHECK("it is believed", view.valid);
}

#define LENGTH (40 * BIN) /* some 10 ms */

static uint64_t row_end;

static inline void begin_rows(void)
{
    begin();
    row_end = row_start;
    read_clock(start, row_end);
}

/* Run so many bins of work in so many streams to the end, and update the clock. */
static inline void run(int64_t bins, int streams, struct governor_piece piece)
{
    piece.from_ns = piece.given_ns = row_end;
    piece.until_ns = row_end += (uint64_t) (bins * BIN);
    for (int i = 0; i < streams; i++)
        governor_finish(&governor, &piece, &view, row_end);
    settle(row_end);
    read_clock(start, row_end);
    settle(row_end);
}

static inline void run_row(int pieces, int streams, int64_t expected_ns)
{
    for (int i = 0; i < pieces; i++)
        run(LENGTH / BIN, streams,
            (struct governor_piece) {.expected_ns = expected_ns, .joins = 1});
}

static inline void pass_gap(int64_t ns)
{
    row_end += (uint64_t) ns;
    read_clock(start, row_end);
    settle(row_end);
}

static inline void check_row(const char *sentence, int64_t expected_ns, int64_t margin_ns)
{
    CHECK(sentence, is_near((int64_t) governor.busy_ns, expected_ns, margin_ns));
    CHECK_EQUAL("what is charged is paid", shared.busy_ns, governor.busy_ns);
    CHECK_EQUAL("all of it", governor.paid_ns, governor.busy_ns);
}

/* The clock's error bound for a row of *length*. */
static inline int64_t row_error(int64_t length)
{
    return ROW_ERROR_NS + length / 8 + FRACTIONS_NS;
}

#endif
