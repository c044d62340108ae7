/* SPDX-License-Identifier: Apache-2.0 */
/* clock.c -- reads and judges the arbiter's clock; see clock.h. */
#include "clock.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "compiler.h"

enum { READ_ATTEMPTS = 4 };

#define SHARED_NS      UINT64_C(1000000000) /* for which others are remembered */
#define HUSH_MOST_NS   UINT64_C(100000000)  /* that a hush reaches ahead */
#define OBEYED_PART    10                   /* of all time, that hushes may take */
#define OBEYED_MOST_NS UINT64_C(1000000000) /* at once, when there was none for long */

_Static_assert(sizeof(struct clock_file) == 4096, "a clock is one page");

static int read_whole(int fd, struct clock_file *page)
{
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++) {
        uint64_t after;

        if (pread(fd, page, sizeof(*page), 0) != (ssize_t) sizeof(*page))
            return -1;
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

/* How far back samples go that follow upon each other. */
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

    if (page->header.magic != CLOCK_MAGIC || page->header.layout != REGION_LAYOUT ||
        page->header.size != sizeof(*page) || page->sequence % 2 != 0 ||
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

/* Hushes are counted from one look to the next. */
static void count_hushes(struct clock_view *view, uint64_t now)
{
    uint64_t passed = view->judged_ns && now > view->judged_ns ? now - view->judged_ns : 0;
    uint64_t forgotten = passed / OBEYED_PART;

    view->obeyed_ns -= forgotten < view->obeyed_ns ? forgotten : view->obeyed_ns;
    if (view->hushed)
        view->obeyed_ns += passed < HUSH_MOST_NS ? passed : HUSH_MOST_NS;
    view->judged_ns = now;
    view->hushed = view->valid && view->page.spared != view->slot + 1 && view->page.hush_ns > now &&
                   view->page.hush_ns - now < HUSH_MOST_NS && view->obeyed_ns < OBEYED_MOST_NS;
}

/* Who has work now and then is somebody, even if he has none at a moment. */
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

void clock_judge(struct clock_view *view, const struct clock_file *page, uint64_t now)
{
    view->met = 1;
    view->valid = can_be_true(page, now);
    if (view->valid) {
        view->page = *page;
        count_sharers(view, now);
    }
    count_hushes(view, now);
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

/* The device is divided among no more than have work, of whom this process is one. */
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

static int is_page_of_guest(const struct clock_view *view)
{
    const struct clock_file *page = &view->page;

    return page->alone == view->slot + 1 && page->alone_until_ns == page->beat_ns;
}

/* What is later than the page goes on as it was, if others begin nothing. */
int clock_alone(const struct clock_view *view, uint64_t begin, uint64_t end, uint64_t now)
{
    const struct clock_file *page = &view->page;

    if (!is_fresh(view, now))
        return clock_sharers(view) == 1 && (!view->met || page->tenants == 1);
    if (page->alone != view->slot + 1 || begin < page->alone_from_ns)
        return 0;
    if (end <= page->alone_until_ns)
        return 1;
    return is_page_of_guest(view) &&
           (page->tenants == 1 || (page->spared == view->slot + 1 && end <= page->hush_ns));
}

uint32_t clock_sharers(const struct clock_view *view)
{
    uint32_t sharers = view->sharers > view->sharers_before ? view->sharers : view->sharers_before;

    return sharers ? sharers : 1;
}

uint64_t clock_hush(const struct clock_view *view, uint64_t now)
{
    return view->hushed && is_fresh(view, now) && view->page.hush_ns > now ? view->page.hush_ns : 0;
}

int clock_is_quiet(const struct clock_view *view, uint64_t now)
{
    return is_fresh(view, now) && view->page.spared == view->slot + 1 && view->page.hush_ns > now &&
           is_page_of_guest(view);
}

uint32_t clock_lent(const struct clock_view *view, uint64_t now)
{
    return is_fresh(view, now) ? view->page.lent : 0;
}
