/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c -- reads and validates the arbiter's clock; see clock.h. */
#include "core/clock.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "core/compiler.h"

enum { READ_ATTEMPTS = 4 };

#define SHARED_NS UINT64_C(1000000000) /* for so long other processes are remembered */

static int read_whole(int fd, struct clock_file *page)
{
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t after;
        ssize_t size = pread(fd, page, sizeof(*page), 0);

        if (size < CLOCK_PAGE)
            return -1;
        if (size < (ssize_t) sizeof(*page)) /* an older arbiter's */
            memset((char *) page + size, 0, sizeof(*page) - (size_t) size);
        if (pread(fd, &after, sizeof(after), offsetof(struct clock_file, sequence)) !=
            (ssize_t) sizeof(after))
            return -1;
        if (page->sequence == after && after % 2 == 0)
            return 0;
    }
    return -1;
}

int clock_read(const char *path, struct clock_file *page)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int result;

    if (fd < 0)
        return -1;
    result = read_whole(fd, page);
    close(fd);
    return result;
}

static const struct clock_sample *sample_at(const struct clock_file *page, uint32_t back)
{
    uint32_t count = ARRAY_SIZE(page->samples);

    return &page->samples[(page->newest + count - back % count) % count];
}

/* Number of samples back to the first empty one. */
static uint32_t sample_count(const struct clock_file *page)
{
    uint32_t count = 0;

    while (count < ARRAY_SIZE(page->samples) && sample_at(page, count)->at_ns)
        count++;
    return count;
}

static int can_follow(const struct clock_sample *earlier, const struct clock_sample *later)
{
    uint64_t passed = later->at_ns - earlier->at_ns;
    uint64_t shared = later->share_ns - earlier->share_ns;

    return later->at_ns >= earlier->at_ns && later->share_ns >= earlier->share_ns &&
           shared <= passed + 1 && shared >= passed / CLOCK_SHARERS;
}

static int is_recent(uint64_t beat, uint64_t now)
{
    return beat >= now || now - beat < CLOCK_STALE_NS;
}

static int can_be_true(const struct clock_file *page, uint64_t now)
{
    struct clock_sample last = {.at_ns = page->beat_ns, .share_ns = page->share_ns};
    uint32_t count;

    if (page->header.magic != CLOCK_MAGIC || page->header.layout != CLOCK_LAYOUT ||
        page->header.size != CLOCK_PAGE || page->sequence % 2 != 0 ||
        page->newest >= ARRAY_SIZE(page->samples))
        return 0;
    if (page->alone_from_ns > page->alone_until_ns || page->alone_until_ns > page->beat_ns)
        return 0;
    if (page->beat_ns > now + CLOCK_AHEAD_NS || !is_recent(page->beat_ns, now))
        return 0;
    count = sample_count(page);
    for (uint32_t back = 0; back < count; back++) {
        const struct clock_sample *sample = sample_at(page, back);

        if (!can_follow(sample, &last))
            return 0;
        last = *sample;
    }
    return 1;
}

/* A process that has work now and then counts, even while it has none. */
static void count_sharers(struct clock_view *view, uint64_t now)
{
    uint32_t busy = view->page.busy < CLOCK_SHARERS ? view->page.busy : CLOCK_SHARERS;

    if (now - view->shared_ns >= SHARED_NS) {
        view->sharers_before = now - view->shared_ns < 2 * SHARED_NS ? view->sharers : 0;
        view->sharers = 0;
        view->shared_ns = now;
    }
    if (view->sharers < busy)
        view->sharers = busy;
}

void clock_evaluate(struct clock_view *view, const struct clock_file *page, uint64_t now)
{
    view->met = 1;
    view->valid = can_be_true(page, now);
    if (view->valid) {
        view->page = *page;
        count_sharers(view, now);
    }
}

static int is_fresh(const struct clock_view *view, uint64_t now)
{
    return view->valid && is_recent(view->page.beat_ns, now);
}

int clock_covers(const struct clock_view *view, uint64_t when)
{
    return view->valid && view->page.beat_ns >= when;
}

static uint64_t scaled(uint64_t value, uint64_t part, uint64_t whole)
{
    return whole ? (uint64_t) ((double) value * (double) part / (double) whole) : 0;
}

/* Share time at *when*, between two points of the clock or beyond its ends. */
static uint64_t share_at(const struct clock_file *page, uint64_t when)
{
    struct clock_sample later = {.at_ns = page->beat_ns, .share_ns = page->share_ns};
    struct clock_sample earlier = later;
    uint32_t count = sample_count(page);

    for (uint32_t back = 0; back < count; back++) {
        const struct clock_sample *sample = sample_at(page, back);

        if (earlier.at_ns != sample->at_ns)
            later = earlier;
        earlier = *sample;
        if (sample->at_ns <= when && later.at_ns > sample->at_ns)
            break;
    }
    if (later.at_ns <= earlier.at_ns)
        return when;
    if (when >= earlier.at_ns)
        return earlier.share_ns + scaled(when - earlier.at_ns, later.share_ns - earlier.share_ns,
                                         later.at_ns - earlier.at_ns);
    return earlier.share_ns - scaled(earlier.at_ns - when, later.share_ns - earlier.share_ns,
                                     later.at_ns - earlier.at_ns);
}

static uint32_t rate_between(const struct clock_file *page, uint64_t begin, uint64_t end)
{
    uint64_t rate = scaled(CLOCK_WHOLE, share_at(page, end) - share_at(page, begin), end - begin);

    return rate > CLOCK_WHOLE ? CLOCK_WHOLE : (uint32_t) rate;
}

/* The device is divided at most among the processes with work, of which this is one. */
static uint32_t least_rate(const struct clock_view *view)
{
    return CLOCK_WHOLE / clock_sharers(view);
}

uint32_t clock_rate(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now)
{
    uint32_t least = least_rate(view);
    uint32_t rate;

    if (!is_fresh(view, now) || end <= begin)
        return CLOCK_WHOLE;
    rate = rate_between(&view->page, begin, end);
    return rate < least ? least : rate;
}

/* A time that was going on at the page's last beat goes on, if there is no other container. */
static int is_within(const struct clock_file *page, uint64_t from, uint64_t until, uint64_t begin,
                     uint64_t end)
{
    return begin >= from &&
           (end <= until || (page->tenants == 1 && !page->outside && until == page->beat_ns));
}

int clock_alone(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now)
{
    const struct clock_file *page = &view->page;

    if (!is_fresh(view, now))
        return clock_sharers(view) == 1 && (!view->met || page->tenants == 1);
    if (page->alone == view->slot + 1 &&
        is_within(page, page->alone_from_ns, page->alone_until_ns, begin, end))
        return 1;
    for (unsigned i = 0; i < ARRAY_SIZE(page->moments); i++) {
        const struct clock_alone *moment = &page->moments[i];

        if (moment->slot == view->slot + 1 &&
            is_within(page, moment->from_ns, moment->until_ns, begin, end))
            return 1;
    }
    return 0;
}

uint64_t clock_alone_time(const struct clock_view *view, uint64_t since, uint64_t begin,
                          uint64_t end)
{
    uint64_t time = 0;

    if (!view->valid)
        return clock_sharers(view) == 1 && !view->met ? end - begin : 0;
    for (unsigned i = 0; i < ARRAY_SIZE(view->page.moments); i++) {
        const struct clock_alone *moment = &view->page.moments[i];
        uint64_t until = moment->until_ns < end ? moment->until_ns : end;

        if (moment->slot == view->slot + 1 && moment->from_ns <= since && begin + time < until)
            time = until - begin;
    }
    return time;
}

/* What others had is known some milliseconds after the clock; beyond half of CLOCK_STALE_NS, it is
 * not waited for. */
uint64_t clock_known_until(const struct clock_view *view)
{
    uint64_t beat = view->page.beat_ns;
    uint64_t until = view->page.others_until_ns;

    return until < beat && beat - until < CLOCK_STALE_NS / 2 ? until : beat;
}

/* Add a cell's part of the time from *begin* to *end*, in all of which this process was at work. */
static void add_cell(struct clock_others *others, uint64_t cell, uint32_t word, uint64_t begin,
                     uint64_t end)
{
    uint64_t from = cell * OTHERS_CELL_NS > begin ? cell * OTHERS_CELL_NS : begin;
    uint64_t until = (cell + 1) * OTHERS_CELL_NS < end ? (cell + 1) * OTHERS_CELL_NS : end;
    uint32_t parts = word >> OTHERS_PARTS_SHIFT & OTHERS_PARTS_MASK;
    double at_work = (parts < 64 ? parts : 64) * (OTHERS_CELL_NS / 64.0);
    double part = (double) (until - from) < at_work ? (double) (until - from) / at_work : 1;

    others->had_ns += (int64_t) ((word & OTHERS_NS_MASK) * part);
    others->at_work_ns += (int64_t) (at_work * part);
    if (word & OTHERS_UNSURE)
        others->unsure_ns += (int64_t) (at_work * part);
}

int clock_others(const struct clock_view *view, uint64_t begin, uint64_t end,
                 struct clock_others *others)
{
    const struct clock_file *page = &view->page;
    uint64_t first = begin / OTHERS_CELL_NS;

    *others = (struct clock_others) {0, 0, 0};
    if (!view->valid || end <= begin || end > page->others_until_ns ||
        first + ARRAY_SIZE(page->others) <= page->others_until_ns / OTHERS_CELL_NS)
        return 0;
    for (uint64_t cell = first; cell * OTHERS_CELL_NS < end; cell++)
        add_cell(others, cell, page->others[cell % ARRAY_SIZE(page->others)], begin, end);
    if (others->had_ns > (int64_t) (end - begin))
        others->had_ns = (int64_t) (end - begin);
    return 1;
}

int clock_had_little(const struct clock_others *others, uint32_t rate)
{
    return others->had_ns <= others->at_work_ns / 8 && rate >= CLOCK_WHOLE - CLOCK_WHOLE / 8;
}

uint32_t clock_sharers(const struct clock_view *view)
{
    uint32_t sharers = view->sharers > view->sharers_before ? view->sharers : view->sharers_before;

    return sharers ? sharers : 1;
}

uint32_t clock_lent(const struct clock_view *view, uint64_t now)
{
    return is_fresh(view, now) ? view->page.lent : 0;
}

uint32_t clock_above(const struct clock_view *view, uint64_t now)
{
    return is_fresh(view, now) ? view->page.above : 0;
}

int clock_spared(const struct clock_view *view, uint64_t now)
{
    return is_fresh(view, now) && view->page.spared;
}
