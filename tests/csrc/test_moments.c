/* SPDX-License-Identifier: Apache-2.0 */
/* test_moments.c -- intervals in which one process alone had work, from published idle times. */
#include "arbiter/moments.h"
#include "check.h"

#include <string.h>

enum { TENANTS = 3, LANES = 40, TICKS = 400, SPANS = 4096 };

#define MS    UINT64_C(1000000)
#define UNIT  ((uint64_t) WORK_UNIT_NS)
#define START (UINT64_C(5000000) * UNIT)

static struct lending_container tenants[TENANTS];
static struct lending_process lanes[TENANTS][LANES];
static struct lending_container *order[TENANTS];

static void begin(unsigned lane_count)
{
    memset(tenants, 0, sizeof(tenants));
    memset(lanes, 0, sizeof(lanes));
    for (unsigned i = 0; i < TENANTS; i++) {
        order[i] = &tenants[i];
        tenants[i].lanes = lanes[i];
        tenants[i].lane_count = lane_count;
        for (unsigned j = 0; j < lane_count; j++)
            lanes[i][j] = (struct lending_process) {.known = 1, .still = 100};
    }
}

/* Inclusive of its first unit, exclusive of its last; *until_ns* 0: it has not ended. */
static uint64_t word_of(uint64_t from_ns, uint64_t until_ns)
{
    uint64_t length = until_ns ? (until_ns - from_ns) / UNIT : IDLE_LENGTH_MASK;

    return from_ns / UNIT << IDLE_LENGTH_BITS | length;
}

/* A process publishes that it had no work between these two times, and has some since. */
static void idle(unsigned tenant, uint64_t from_us, uint64_t until_us)
{
    struct lending_process *lane = &lanes[tenant][0];
    uint64_t until = until_us ? START + until_us * UNIT : 0;

    lane->still = 0;
    lane->idle[1] = lane->idle[0];
    lane->idle[0] = word_of(START + from_us * UNIT, until);
}

static void busy(unsigned tenant)
{
    lanes[tenant][0].still = 0;
}

static void find(uint64_t begin_us, uint64_t end_us)
{
    uint64_t begin_ns = START + begin_us * UNIT, end_ns = START + end_us * UNIT;

    moments_find(order, TENANTS, begin_ns, begin_ns, end_ns);
}

static int has(unsigned tenant, uint32_t slot, uint64_t from_us, uint64_t until_us)
{
    for (unsigned i = 0; i < LENDING_MOMENTS; i++) {
        const struct clock_alone *moment = &tenants[tenant].moments[i];

        if (moment->slot == slot + 1 && moment->from_ns == START + from_us * UNIT &&
            moment->until_ns == START + until_us * UNIT)
            return 1;
    }
    return 0;
}

static unsigned count_of(unsigned tenant)
{
    unsigned count = 0;

    for (unsigned i = 0; i < LENDING_MOMENTS; i++)
        count += tenants[tenant].moments[i].slot != 0;
    return count;
}

static void idle_words_round_trip(void)
{
    uint64_t now = START + 9000 * UNIT;
    uint64_t wrap = (UINT64_C(1) << (64 - IDLE_LENGTH_BITS)) * UNIT;
    struct moments_idle idle;

    idle = moments_idle(word_of(START, START + 7 * UNIT), now);
    CHECK_EQUAL("from", idle.from_ns, START / UNIT * UNIT);
    CHECK_EQUAL("until", idle.until_ns, START / UNIT * UNIT + 7 * UNIT);
    idle = moments_idle(word_of(START, 0), now);
    CHECK_EQUAL("one that goes on, until now", idle.until_ns, now);
    idle = moments_idle(word_of(START, START + 90000 * UNIT), now);
    CHECK_EQUAL("one that ends later, too", idle.until_ns, now);
    idle = moments_idle(0, now);
    CHECK_EQUAL("none", idle.until_ns, 0);
    idle = moments_idle(word_of(now + 2 * UNIT, 0), now);
    CHECK_EQUAL("one that begins later is nonsense", idle.until_ns, 0);
    idle = moments_idle(word_of(wrap - 5 * UNIT, wrap + 5 * UNIT), wrap + 6 * UNIT);
    CHECK_EQUAL("across the end of the numbers", idle.from_ns, wrap - 5 * UNIT);
    CHECK_EQUAL("as long as it was", idle.until_ns, wrap + 5 * UNIT);
}

static void one_is_alone_while_the_other_is_idle(void)
{
    begin(1);
    busy(0);
    idle(1, 100, 300);
    find(0, 500);
    CHECK("then", has(0, 0, 100, 300));
    CHECK_EQUAL("and at no other time", count_of(0), 1);
    CHECK_EQUAL("the other never", count_of(1), 0);
}

static void process_without_work_for_long_is_idle(void)
{
    begin(1);
    busy(0);
    idle(1, 0, 0);
    lanes[2][0].still = 2; /* it publishes nothing */
    find(0, 500);
    CHECK_EQUAL("not yet for as long as is checked", count_of(0), 1);
    CHECK("since it was seen", has(0, 0, 0, 500));
    begin(1);
    busy(0);
    lanes[1][0].still = 1;
    moments_find(order, TENANTS, START, START + 200 * UNIT, START + 500 * UNIT);
    CHECK("from the last check on", has(0, 0, 200, 500));
}

static void exclusive_interval_includes_preceding_idle_time(void)
{
    begin(1);
    idle(0, 100, 300);
    idle(1, 50, 400);
    find(0, 500);
    CHECK("alone from the other's end to its begin", has(0, 0, 50, 400));
    begin(1);
    idle(0, 100, 300);
    idle(1, 50, 200);
    find(0, 500);
    CHECK("the first before", has(0, 0, 50, 200));
    CHECK("the second after the first has ended", has(1, 0, 100, 300));
}

static void three_are_alone_in_turn(void)
{
    begin(1);
    idle(0, 100, 500);
    idle(1, 0, 100);
    idle(1, 200, 500);
    idle(2, 0, 250);
    find(0, 500);
    CHECK("first", has(0, 0, 0, 100));
    CHECK("second", has(1, 0, 100, 250));
    CHECK("third", has(2, 0, 200, 500));
}

static void processes_of_one_container_count_separately(void)
{
    begin(2);
    busy(0);
    lanes[0][1] = (struct lending_process) {.known = 1};
    find(0, 500);
    CHECK_EQUAL("none is alone", count_of(0), 0);
    lanes[0][0].idle[0] = word_of(START + 600 * UNIT, 0);
    find(500, 900);
    CHECK("then the second is", has(0, 1, 600, 900));
}

static void intervals_grow_from_check_to_check(void)
{
    begin(1);
    busy(0);
    idle(1, 100, 0);
    find(0, 500);
    find(300, 800);
    find(800, 900);
    CHECK("one", has(0, 0, 100, 900));
    CHECK_EQUAL("and no other", count_of(0), 1);
    lanes[1][0].idle[0] = word_of(START + 100 * UNIT, START + 850 * UNIT);
    find(850, 1200);
    CHECK("what was true stays so", has(0, 0, 100, 900));
}

static void too_many_processes_are_never_alone(void)
{
    begin(LANES);
    for (unsigned i = 0; i < TENANTS; i++)
        for (unsigned j = 0; j < LANES; j++)
            lanes[i][j].still = 0;
    find(0, 500);
    CHECK_EQUAL("none", count_of(0) + count_of(1) + count_of(2), 0);
}

static void oldest_interval_is_replaced(void)
{
    begin(1);
    busy(0);
    for (uint64_t i = 0; i < 40; i++) {
        idle(1, i * 100, i * 100 + 50);
        find(i * 100, i * 100 + 100);
    }
    CHECK_EQUAL("as many as there is room for", count_of(0), LENDING_MOMENTS);
    CHECK("the last", has(0, 0, 3900, 3950));
    CHECK("not the first", !has(0, 0, 0, 50));
}

/* --- random schedules ------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (state >> 33) % below;
}

/* A process's actual schedule: its idle times, in units since START. */
static struct schedule {
    uint64_t from[SPANS], until[SPANS];
    unsigned count;
} schedules[TENANTS];

static void make_schedule(struct schedule *schedule, uint64_t longest)
{
    uint64_t at = draw(longest);

    for (schedule->count = 0; schedule->count < SPANS; schedule->count++) {
        schedule->from[schedule->count] = at;
        at += 1 + draw(longest);
        schedule->until[schedule->count] = at;
        at += 1 + draw(longest);
    }
}

static int has_work(unsigned tenant, uint64_t at)
{
    const struct schedule *schedule = &schedules[tenant];

    for (unsigned i = 0; i < schedule->count && schedule->from[i] <= at; i++)
        if (at < schedule->until[i])
            return 0;
    return 1;
}

/* Publish as the process would at *now*: its last two idle times. */
static void publish(unsigned tenant, uint64_t now)
{
    const struct schedule *schedule = &schedules[tenant];
    struct lending_process *lane = &lanes[tenant][0];

    lane->still = 0;
    lane->idle[0] = lane->idle[1] = 0;
    for (unsigned i = 0; i < schedule->count && schedule->from[i] < now; i++)
        lane->idle[i % 2] =
            word_of(START + schedule->from[i] * UNIT,
                    schedule->until[i] <= now ? START + schedule->until[i] * UNIT : 0);
}

static int check_moments(void)
{
    int wrong = 0;

    for (unsigned i = 0; i < TENANTS; i++)
        for (unsigned j = 0; j < LENDING_MOMENTS; j++) {
            const struct clock_alone *moment = &tenants[i].moments[j];

            for (uint64_t at = moment->from_ns; moment->slot && at < moment->until_ns; at += UNIT)
                for (unsigned other = 0; other < TENANTS; other++)
                    wrong += other != i && has_work(other, (at - START) / UNIT);
        }
    return wrong;
}

/* Total time in which a process had work alone, and how much of it was found. */
static uint64_t alone_units, found_units;

static void count_found(uint64_t from, uint64_t until)
{
    for (uint64_t at = from; at < until; at++)
        for (unsigned i = 0; i < TENANTS; i++) {
            if (!has_work(i, at) || has_work((i + 1) % TENANTS, at) ||
                has_work((i + 2) % TENANTS, at))
                continue;
            alone_units++;
            for (unsigned j = 0; j < LENDING_MOMENTS; j++) {
                const struct clock_alone *moment = &tenants[i].moments[j];

                if (moment->slot && moment->from_ns <= START + at * UNIT &&
                    moment->until_ns > START + at * UNIT) {
                    found_units++;
                    break;
                }
            }
        }
}

static void random_schedules_give_only_true_intervals(void)
{
    static const uint64_t longest[] = {40, 200, 1000, 5000};

    for (size_t i = 0; i < sizeof(longest) / sizeof(*longest); i++) {
        uint64_t now = 0;
        int wrong = 0;

        state = i + 1;
        alone_units = found_units = 0;
        begin(1);
        for (unsigned tenant = 0; tenant < TENANTS; tenant++)
            make_schedule(&schedules[tenant], longest[i]);
        for (int tick = 0; tick < TICKS && now < SPANS * longest[i] / 2; tick++) {
            uint64_t before = now;
            uint64_t from = now > 300 ? now - 300 : 0;

            now += 1 + draw(400);
            for (unsigned tenant = 0; tenant < TENANTS; tenant++)
                publish(tenant, now);
            moments_find(order, TENANTS, START + from * UNIT, START + before * UNIT,
                         START + now * UNIT);
            wrong += check_moments();
            count_found(before, now);
        }
        CHECK_EQUAL("no other had work in any moment", wrong, 0);
        CHECK("some are found", longest[i] < 200 || found_units > alone_units / 2);
        CHECK("of long ones nearly all", longest[i] < 1000 || found_units > alone_units * 9 / 10);
    }
}

int main(void)
{
    idle_words_round_trip();
    one_is_alone_while_the_other_is_idle();
    process_without_work_for_long_is_idle();
    exclusive_interval_includes_preceding_idle_time();
    three_are_alone_in_turn();
    processes_of_one_container_count_separately();
    intervals_grow_from_check_to_check();
    too_many_processes_are_never_alone();
    oldest_interval_is_replaced();
    random_schedules_give_only_true_intervals();
    return check_end();
}
