/* SPDX-License-Identifier: Apache-2.0 */
/* test_clock.c -- the shim's reader of the arbiter's clock: validation and queries. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "core/clock.h"
#include "core/compiler.h"

#define MS UINT64_C(1000000)

static const uint64_t start = 1000 * MS;

/* Samples every 5 ms: alone for 100 ms, then for 100 ms one of two. */
static struct clock_file page_of_200_ms(void)
{
    struct clock_file page = {
        .header = {.magic = CLOCK_MAGIC, .layout = CLOCK_LAYOUT, .size = CLOCK_PAGE}};

    for (uint32_t i = 0; i <= 40; i++) {
        uint64_t passed = i * 5 * MS;

        page.newest = i;
        page.samples[i].at_ns = page.beat_ns = start + passed;
        page.samples[i].share_ns = page.share_ns =
            start + (passed < 100 * MS ? passed : 100 * MS + (passed - 100 * MS) / 2);
    }
    page.busy = 2;
    page.lent = CLOCK_WHOLE / 4;
    return page;
}

static int believed(struct clock_file page, uint64_t now)
{
    struct clock_view view = {0};

    clock_evaluate(&view, &page, now);
    return view.valid;
}

static void test_implausible_clocks_are_rejected(void)
{
    struct clock_file good = page_of_200_ms();
    struct clock_file page = good;
    uint64_t now = good.beat_ns;

    CHECK("as it should be", believed(good, now));
    CHECK("99 ms old", believed(good, now + 99 * MS));
    CHECK("100 ms old", !believed(good, now + 100 * MS));
    CHECK("a little ahead", believed(good, now - MS));
    CHECK("from the future", !believed(good, now - 2 * MS));
    page.header.magic++;
    CHECK("another magic", !believed(page, now));
    page = good;
    page.header.layout++;
    CHECK("another layout", !believed(page, now));
    page = good;
    page.header.size--;
    CHECK("another size", !believed(page, now));
    page = good;
    page.sequence = 7;
    CHECK("being written", !believed(page, now));
    page = good;
    page.newest = 248;
    CHECK("a sample that is none", !believed(page, now));
    page = good;
    page.samples[20].share_ns = page.samples[19].share_ns + 6 * MS;
    CHECK("shares pass faster than time", !believed(page, now));
    page = good;
    page.samples[20].share_ns = page.samples[19].share_ns - 1;
    CHECK("shares run back", !believed(page, now));
    page = good;
    page.samples[20].at_ns = page.samples[22].at_ns;
    CHECK("time runs back", !believed(page, now));
    page = good;
    for (uint32_t i = 21; i <= 40; i++)
        page.samples[i].share_ns = page.samples[20].share_ns;
    page.share_ns = page.samples[20].share_ns;
    CHECK("shares stand still", !believed(page, now));
    page = good;
    memset(page.samples, 0, sizeof(page.samples));
    CHECK("no samples yet", believed(page, now));
    memset(&page, 0xff, sizeof(page));
    CHECK("all ones", !believed(page, now));
}

static void test_rate_between_two_times(void)
{
    struct clock_file page = page_of_200_ms();
    struct clock_view view = {0};
    uint64_t now = page.beat_ns;

    CHECK_EQUAL("no clock: alone", clock_rate(&view, start, now, now), CLOCK_WHOLE);
    clock_evaluate(&view, &page, now);
    CHECK_EQUAL("alone", clock_rate(&view, start + 10 * MS, start + 50 * MS, now), CLOCK_WHOLE);
    CHECK_EQUAL("one of two", clock_rate(&view, start + 110 * MS, start + 150 * MS, now),
                CLOCK_WHOLE / 2);
    CHECK_EQUAL("half of either", clock_rate(&view, start + 80 * MS, start + 120 * MS, now),
                CLOCK_WHOLE / 4 * 3);
    CHECK_EQUAL("between samples", clock_rate(&view, start + 111 * MS, start + 113 * MS, now),
                CLOCK_WHOLE / 2);
    CHECK_EQUAL("foreseen", clock_rate(&view, now, now + 50 * MS, now + 50 * MS), CLOCK_WHOLE / 2);
    CHECK_EQUAL("before it began", clock_rate(&view, start - 50 * MS, start, now), CLOCK_WHOLE);
    CHECK_EQUAL("no time at all", clock_rate(&view, now, now, now), CLOCK_WHOLE);
    CHECK_EQUAL("it became old", clock_rate(&view, now, now + MS, now + 100 * MS), CLOCK_WHOLE);
    CHECK("it reaches its beat", clock_covers(&view, now));
    CHECK("and no further", !clock_covers(&view, now + 1));
}

static uint32_t rate_of_a_slow_clock(uint32_t busy)
{
    struct clock_file page = page_of_200_ms();
    struct clock_view view = {0};

    memset(page.samples, 0, sizeof(page.samples));
    page.newest = 1;
    page.samples[0] = (struct clock_sample) {start + 1, start};
    page.samples[1] = (struct clock_sample) {start + 100 * MS, start + 100 * MS / 63};
    page.share_ns = start + 200 * MS / 63;
    page.busy = busy;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK("no slower than it may be", view.valid);
    return clock_rate(&view, start + 100 * MS, page.beat_ns, page.beat_ns);
}

static void test_rate_is_at_least_an_equal_part_of_busy_containers(void)
{
    CHECK_EQUAL("no other container seen", rate_of_a_slow_clock(0), CLOCK_WHOLE);
    CHECK_EQUAL("only this one", rate_of_a_slow_clock(1), CLOCK_WHOLE);
    CHECK_EQUAL("one of eight", rate_of_a_slow_clock(8), CLOCK_WHOLE / 8);
    CHECK("any number", rate_of_a_slow_clock(UINT32_MAX) < CLOCK_WHOLE / 62);
}

static void test_lent_share_ends_with_the_clock(void)
{
    struct clock_file page = page_of_200_ms();
    struct clock_view view = {0};

    CHECK_EQUAL("no clock", clock_lent(&view, start), 0);
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("as it says", clock_lent(&view, page.beat_ns + 99 * MS), CLOCK_WHOLE / 4);
    CHECK_EQUAL("too old", clock_lent(&view, page.beat_ns + 100 * MS), 0);
    page.header.magic = 0;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("replaced by nonsense", clock_lent(&view, page.beat_ns), 0);
}

static void test_stopped_clock_throttles_no_lower_priority(void)
{
    struct clock_file page = page_of_200_ms();
    struct clock_view view = {0};

    page.above = CLOCK_ABOVE_BUSY;
    CHECK_EQUAL("no clock", clock_above(&view, start), 0);
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("as it says", clock_above(&view, page.beat_ns + 99 * MS), CLOCK_ABOVE_BUSY);
    CHECK_EQUAL("too old", clock_above(&view, page.beat_ns + 100 * MS), 0);
}

static void test_stopped_clock_spares_no_container(void)
{
    struct clock_file page = page_of_200_ms();
    struct clock_view view = {0};

    page.spared = 1;
    CHECK("no clock", !clock_spared(&view, start));
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK("as it says", clock_spared(&view, page.beat_ns + 99 * MS));
    CHECK("too old", !clock_spared(&view, page.beat_ns + 100 * MS));
    page.spared = 0;
    page.beat_ns += 1;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK("another container has work", !clock_spared(&view, page.beat_ns));
}

/* The process in slot 3 was alone from 50 to 150 ms; the clock's beat is at 200 ms. */
static struct clock_file page_of_slot_3(void)
{
    struct clock_file page = page_of_200_ms();

    page.alone = 4;
    page.alone_from_ns = start + 50 * MS;
    page.alone_until_ns = start + 150 * MS;
    page.busy = 2;
    page.tenants = 2;
    return page;
}

static void test_last_exclusive_interval_is_for_its_process_only(void)
{
    struct clock_file page = page_of_slot_3();
    struct clock_view view = {.slot = 3}, other = {.slot = 4}, none = {.slot = 3};
    uint64_t now = page.beat_ns;

    clock_evaluate(&view, &page, now);
    clock_evaluate(&other, &page, now);
    CHECK("then", clock_alone(&view, start + 50 * MS, start + 150 * MS, now));
    CHECK("not from before on", !clock_alone(&view, start + 49 * MS, start + 150 * MS, now));
    CHECK("nor to later", !clock_alone(&view, start + 50 * MS, start + 151 * MS, now));
    CHECK("nor another", !clock_alone(&other, start + 50 * MS, start + 150 * MS, now));
    CHECK("no clock, no other container known", clock_alone(&none, start, now, now));
    CHECK("an old clock that knew another container",
          !clock_alone(&view, start + 50 * MS, start + 150 * MS, now + 100 * MS));
    page.alone_until_ns = now;
    clock_evaluate(&view, &page, now);
    CHECK("the future is not known", !clock_alone(&view, now - MS, now + MS, now + MS));
    page.tenants = 1;
    clock_evaluate(&view, &page, now);
    CHECK("unless there is no other container", clock_alone(&view, now - MS, now + MS, now + MS));
    page.outside = 1;
    clock_evaluate(&view, &page, now);
    CHECK("nor a process outside of containers", !clock_alone(&view, now - MS, now + MS, now + MS));
    page.outside = 0;
    page.alone_until_ns = now - 1;
    clock_evaluate(&view, &page, now);
    CHECK("and it was alone to the last", !clock_alone(&view, now - MS, now + MS, now + MS));
    page.tenants = 2;
    page.alone_until_ns = now + 1;
    clock_evaluate(&view, &page, now);
    CHECK("an interval in the future is invalid", !view.valid);
}

static void test_every_exclusive_interval_counts(void)
{
    struct clock_file page = page_of_slot_3();
    struct clock_view view = {.slot = 3}, other = {.slot = 4};
    uint64_t now = page.beat_ns;

    page.moments[2] = (struct clock_alone) {start + 160 * MS, start + 165 * MS, 4, 0};
    page.moments[9] = (struct clock_alone) {start + 170 * MS, start + 180 * MS, 5, 0};
    page.moments[15] = (struct clock_alone) {start + 10 * MS, start + 20 * MS, 4, 0};
    clock_evaluate(&view, &page, now);
    clock_evaluate(&other, &page, now);
    CHECK("the last", clock_alone(&view, start + 50 * MS, start + 150 * MS, now));
    CHECK("another", clock_alone(&view, start + 161 * MS, start + 165 * MS, now));
    CHECK("an older one", clock_alone(&view, start + 10 * MS, start + 20 * MS, now));
    CHECK("not over two of them", !clock_alone(&view, start + 10 * MS, start + 150 * MS, now));
    CHECK("nor another's", !clock_alone(&view, start + 171 * MS, start + 172 * MS, now));
    CHECK("which has it", clock_alone(&other, start + 171 * MS, start + 172 * MS, now));
    CHECK_EQUAL("all of it",
                clock_alone_time(&view, start + 160 * MS, start + 161 * MS, start + 164 * MS),
                3 * MS);
    CHECK_EQUAL("up to its end",
                clock_alone_time(&view, start + 160 * MS, start + 161 * MS, start + 190 * MS),
                4 * MS);
    CHECK_EQUAL("nothing if another had work before",
                clock_alone_time(&view, start + 159 * MS, start + 161 * MS, start + 164 * MS), 0);
    CHECK_EQUAL("nor at another time",
                clock_alone_time(&view, start + 166 * MS, start + 166 * MS, start + 169 * MS), 0);
}

static void test_others_had_little_if_both_estimates_say_so(void)
{
    struct clock_others little = {.had_ns = 125 * MS, .at_work_ns = 1000 * MS};
    struct clock_others more = {.had_ns = 126 * MS, .at_work_ns = 1000 * MS};

    CHECK("an eighth", clock_had_little(&little, CLOCK_WHOLE / 8 * 7));
    CHECK("more by what they publish", !clock_had_little(&more, CLOCK_WHOLE));
    CHECK("more by the clock", !clock_had_little(&little, CLOCK_WHOLE / 8 * 7 - 1));
}

static void set_others(struct clock_file *page, uint64_t when, uint32_t had_ns, uint32_t parts,
                       uint32_t unsure)
{
    page->others[when / OTHERS_CELL_NS % OTHERS_CELLS] =
        had_ns | parts << OTHERS_PARTS_SHIFT | unsure;
}

#define CELL ((uint64_t) OTHERS_CELL_NS)

static void test_time_of_other_containers(void)
{
    struct clock_file page = page_of_slot_3();
    uint64_t first = (start + 150 * MS) / CELL * CELL;
    struct clock_view view = {0};
    struct clock_others others;

    set_others(&page, first, CELL / 2, 64, 0);
    set_others(&page, first + CELL, CELL / 8, 32, 0);
    set_others(&page, first + 2 * CELL, CELL / 4, 64, OTHERS_UNSURE);
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK("nothing is known", !clock_others(&view, first, first + CELL, &others));
    CHECK_EQUAL("it is not waited for", clock_known_until(&view), page.beat_ns);
    page.others_until_ns = first + 4 * CELL;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("it is known up to then", clock_known_until(&view), first + 4 * CELL);
    CHECK("so far", clock_others(&view, first, first + 4 * CELL, &others));
    CHECK("and no farther", !clock_others(&view, first, first + 4 * CELL + 1, &others));
    clock_others(&view, first, first + 2 * CELL, &others);
    CHECK_EQUAL("both cells", others.had_ns, CELL / 2 + CELL / 8);
    CHECK_EQUAL("one and a half at work", others.at_work_ns, CELL + CELL / 2);
    CHECK_EQUAL("for sure", others.unsure_ns, 0);
    clock_others(&view, first + CELL / 4, first + CELL, &others);
    CHECK_EQUAL("three quarters of one", others.had_ns, CELL / 2 * 3 / 4);
    clock_others(&view, first + CELL, first + CELL + CELL / 2, &others);
    CHECK_EQUAL("all of what it was at work", others.had_ns, CELL / 8);
    clock_others(&view, first + CELL, first + 3 * CELL, &others);
    CHECK_EQUAL("a guess", others.unsure_ns, CELL);
    CHECK("not of what was overwritten",
          !clock_others(&view, first - OTHERS_CELLS * CELL, first, &others));
    CHECK("nor of no time", !clock_others(&view, first + CELL, first + CELL, &others));
    set_others(&page, first, OTHERS_NS_MASK, 64, 0);
    clock_evaluate(&view, &page, page.beat_ns);
    clock_others(&view, first, first + CELL, &others);
    CHECK_EQUAL("never more than the time", others.had_ns, CELL);
    page.others_until_ns = page.beat_ns - 60 * MS;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("what is late is not waited for", clock_known_until(&view), page.beat_ns);
    page.others_until_ns = page.beat_ns + 60 * MS;
    clock_evaluate(&view, &page, page.beat_ns);
    CHECK_EQUAL("nor what is ahead", clock_known_until(&view), page.beat_ns);
}

/* An older arbiter's file ends with the first page. */
static void test_older_arbiter_has_only_the_last_exclusive_interval(void)
{
    struct clock_file page = page_of_slot_3(), read;
    char path[] = "/tmp/clock.XXXXXX";
    int fd = mkstemp(path);

    page.moments[0] = (struct clock_alone) {start, start + 10 * MS, 4, 0};
    CHECK_EQUAL("written", write(fd, &page, sizeof(page)), sizeof(page));
    memset(&read, 0xff, sizeof(read));
    CHECK_EQUAL("read", clock_read(path, &read), 0);
    CHECK_EQUAL("with its moments", read.moments[0].slot, 4);
    CHECK_EQUAL("cut off", ftruncate(fd, CLOCK_PAGE), 0);
    memset(&read, 0xff, sizeof(read));
    CHECK_EQUAL("it can be read", clock_read(path, &read), 0);
    CHECK_EQUAL("and has the last one", read.alone, 4);
    CHECK_EQUAL("and no other", read.moments[0].slot, 0);
    CHECK_EQUAL("and nothing of others", read.others_until_ns, 0);
    CHECK_EQUAL("cut shorter", ftruncate(fd, CLOCK_PAGE - 1), 0);
    CHECK("it is none", clock_read(path, &read) < 0);
    close(fd);
    unlink(path);
}

/* An arbiter that was stopped as soon as it started has counted no containers: that does not mean
 * that there are none. */
static void test_arbiter_without_counted_containers_proves_no_exclusivity(void)
{
    struct clock_file page = page_of_slot_3();
    struct clock_view view = {.slot = 3}, late = {.slot = 3};
    uint64_t now = page.beat_ns;

    page.tenants = page.busy = 0;
    page.alone = 0;
    clock_evaluate(&view, &page, now);
    CHECK("it had begun", view.valid && !clock_alone(&view, now, now + 300 * MS, now + 300 * MS));
    clock_evaluate(&late, &page, now + 300 * MS);
    CHECK("and was met late", !late.valid && !clock_alone(&late, now, now + MS, now + 300 * MS));
    page.tenants = 1;
    clock_evaluate(&view, &page, now);
    CHECK("it knew of this one", clock_alone(&view, now, now + 300 * MS, now + 300 * MS));
}

static void test_sharers_are_remembered_for_a_while(void)
{
    struct clock_file page = page_of_slot_3();
    struct clock_view view = {0};
    uint64_t now = page.beat_ns;

    CHECK_EQUAL("no other container known", clock_sharers(&view), 1);
    clock_evaluate(&view, &page, now);
    CHECK_EQUAL("two", clock_sharers(&view), 2);
    page.busy = 1;
    clock_evaluate(&view, &page, now + MS);
    CHECK_EQUAL("still two", clock_sharers(&view), 2);
    for (int i = 1; i < 100; i++) {
        page.beat_ns = now += 50 * MS;
        page.share_ns += 50 * MS;
        page.busy = i % 15 ? 1 : 2;
        clock_evaluate(&view, &page, now);
        CHECK_EQUAL("two now and then", clock_sharers(&view), 2);
    }
    page.beat_ns = now += 2000 * MS;
    page.share_ns += 2000 * MS;
    page.busy = 1;
    clock_evaluate(&view, &page, now);
    CHECK_EQUAL("one", clock_sharers(&view), 1);
}

static void test_file_is_read_whole_or_not_at_all(void)
{
    char path[] = "/tmp/test-clock-XXXXXX";
    struct clock_file page = page_of_200_ms();
    struct clock_file read;
    int fd = mkstemp(path);

    CHECK("written", write(fd, &page, sizeof(page)) == (ssize_t) sizeof(page));
    CHECK("read", clock_read(path, &read) == 0 && memcmp(&read, &page, sizeof(page)) == 0);
    page.sequence = 1;
    CHECK("written", pwrite(fd, &page, sizeof(page), 0) == (ssize_t) sizeof(page));
    CHECK("its writer died", clock_read(path, &read) == -1);
    CHECK("cut", ftruncate(fd, 4095) == 0);
    CHECK("short", clock_read(path, &read) == -1);
    close(fd);
    unlink(path);
    CHECK("not there", clock_read(path, &read) == -1);
}

int main(void)
{
    test_implausible_clocks_are_rejected();
    test_rate_between_two_times();
    test_rate_is_at_least_an_equal_part_of_busy_containers();
    test_lent_share_ends_with_the_clock();
    test_stopped_clock_throttles_no_lower_priority();
    test_stopped_clock_spares_no_container();
    test_last_exclusive_interval_is_for_its_process_only();
    test_every_exclusive_interval_counts();
    test_time_of_other_containers();
    test_others_had_little_if_both_estimates_say_so();
    test_older_arbiter_has_only_the_last_exclusive_interval();
    test_arbiter_without_counted_containers_proves_no_exclusivity();
    test_sharers_are_remembered_for_a_while();
    test_file_is_read_whole_or_not_at_all();
    return check_end();
}
