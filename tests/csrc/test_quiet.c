/* SPDX-License-Identifier: Apache-2.0 */
/* test_quiet.c -- quiet moments: who has them, when they end, and what they cost others. */
#include "arbiter/fluid.h"
#include "check.h"

#define MS UINT64_C(1000000)

enum { TENANTS = 3, LANES = 2 };

static struct quiet quiet;
static struct fluid_tenant tenants[TENANTS];
static struct fluid_tenant *order[TENANTS];
static struct fluid_lane lanes[TENANTS][LANES];
static uint64_t now;

static void begin(void)
{
    memset(tenants, 0, sizeof(tenants));
    memset(lanes, 0, sizeof(lanes));
    quiet = (struct quiet) {.allowed_ns = QUIET_SAVED_NS};
    now = 1000 * MS;
    for (unsigned i = 0; i < TENANTS; i++) {
        tenants[i].lanes = lanes[i];
        tenants[i].lane_count = LANES;
        order[i] = &tenants[i];
        for (unsigned j = 0; j < LANES; j++)
            lanes[i][j] = (struct fluid_lane) {.known = 1, .still = 1};
    }
}

static void works(unsigned tenant, unsigned lane, int work)
{
    lanes[tenant][lane].still = !work;
    lanes[tenant][lane].seen.begun = work ? lanes[tenant][lane].seen.finished + 1000 : 0;
    lanes[tenant][lane].seen.finished = 0;
}

static void wish(unsigned tenant, uint64_t for_ns)
{
    tenants[tenant].quiet.wish_ns = now + 10000 * MS;
    tenants[tenant].quiet.wish_for_ns = for_ns;
}

static void tick(uint64_t time)
{
    quiet_tick(&quiet, order, TENANTS, now, now + time);
    now += time;
}

static void test_who_is_alone_is_told_so_afterwards(void)
{
    uint64_t from = now + 5 * MS;

    works(0, 0, 1);
    works(1, 0, 1);
    tick(5 * MS);
    CHECK("two: nobody is", !tenants[0].quiet.alone && !tenants[1].quiet.alone);
    works(1, 0, 0);
    tick(5 * MS);
    tick(5 * MS);
    CHECK_EQUAL("one is", tenants[0].quiet.alone, 1);
    CHECK_EQUAL("since", tenants[0].quiet.alone_from_ns, from);
    CHECK_EQUAL("until now", tenants[0].quiet.alone_until_ns, now);
    works(0, 1, 1);
    tick(5 * MS);
    CHECK_EQUAL("with another of its own it is not", tenants[0].quiet.alone_until_ns, now - 5 * MS);
    works(0, 0, 0);
    tick(5 * MS);
    CHECK_EQUAL("then that is", tenants[0].quiet.alone, 2);
    CHECK_EQUAL("nobody asked for a hush", quiet.hush_ns, 0);
}

static void test_a_moment_from_wish_to_end(void)
{
    for (unsigned i = 0; i < TENANTS; i++)
        works(i, 0, 1);
    wish(1, 20 * MS);
    tick(5 * MS);
    CHECK("others are told to wait", quiet.hush_ns > now && tenants[1].quiet.spared == 1);
    CHECK("but whom it is for", !tenants[0].quiet.spared && !tenants[2].quiet.spared);
    works(0, 0, 0);
    tick(1 * MS);
    CHECK("one still works", !tenants[1].quiet.alone);
    works(2, 0, 0);
    tick(1 * MS);
    CHECK_EQUAL("it is alone", tenants[1].quiet.alone_until_ns, now);
    tick(1 * MS);
    CHECK("as long as it wishes", quiet.hush_ns > now);
    tenants[1].quiet.wish_ns = 0;
    tick(1 * MS);
    CHECK("not longer", !quiet.hush_ns && !tenants[1].quiet.spared);
    CHECK("and the others begin again", quiet.lively_ns > now + 20 * MS);
    wish(0, 20 * MS);
    wish(1, 20 * MS);
    tick(1 * MS);
    CHECK("the next one is another's", tenants[0].quiet.spared == 1 && !tenants[1].quiet.spared);
}

static void test_who_has_nothing_to_do_is_told_that_it_may(void)
{
    works(0, 0, 1);
    wish(1, 20 * MS);
    tick(5 * MS);
    works(0, 0, 0);
    tick(1 * MS);
    CHECK("it is alone before it works", tenants[1].quiet.alone == 1 && quiet.hush_ns);
    for (int i = 0; i < 10; i++)
        tick(1 * MS);
    CHECK("if it does nothing with it, that is over", !quiet.hush_ns);
    tick(1 * MS);
    CHECK("and not repeated at once", !quiet.hush_ns);
    for (int i = 0; i < 30; i++)
        tick(1 * MS);
    CHECK("all have begun again", quiet.lively_ns < now);
    tick(100 * MS);
    CHECK("but after a while", quiet.hush_ns != 0);
}

static void test_who_does_not_stop_is_not_waited_for_long(void)
{
    unsigned waited = 0;

    works(0, 0, 1);
    works(1, 0, 1);
    wish(1, 20 * MS);
    tick(5 * MS);
    while (quiet.hush_ns && waited < 1000) {
        tick(1 * MS);
        waited++;
    }
    CHECK("some 30 ms", waited >= 30 && waited <= 40);
}

static void test_a_moment_is_not_longer_than_it_was_to_be(void)
{
    unsigned lasted = 0;

    works(1, 0, 1);
    wish(1, 100000 * MS);
    tick(5 * MS);
    while (quiet.hush_ns && lasted < 10000) {
        tick(1 * MS);
        lasted++;
    }
    CHECK("less than half a second", lasted > 300 && lasted < 500);
}

static void test_all_moments_together_take_little(void)
{
    uint64_t hushed = 0;

    works(0, 0, 1);
    works(1, 0, 1);
    for (int i = 0; i < 60000; i++) {
        for (unsigned tenant = 0; tenant < TENANTS; tenant++)
            wish(tenant, 400 * MS);
        tick(1 * MS);
        hushed += quiet.hush_ns ? 1 * MS : 0;
    }
    CHECK("of a minute", hushed > 1000 * MS && hushed < 2600 * MS);
}

static void test_a_guest_that_is_gone_is_forgotten(void)
{
    works(0, 0, 1);
    works(1, 0, 1);
    wish(1, 20 * MS);
    tick(5 * MS);
    CHECK("there is one", quiet.guest == &tenants[1]);
    quiet_seat(&quiet, order, 1);
    CHECK("there is none", !quiet.guest);
    quiet_tick(&quiet, order, 1, now, now + MS);
    CHECK("and no hush", !quiet.hush_ns);
}

static void test_a_wish_for_a_slot_that_is_none_is_none(void)
{
    works(0, 0, 1);
    wish(1, 20 * MS);
    tenants[1].quiet.wish_slot = LANES;
    tick(5 * MS);
    CHECK("no hush", !quiet.hush_ns);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_who_is_alone_is_told_so_afterwards,
        test_a_moment_from_wish_to_end,
        test_who_has_nothing_to_do_is_told_that_it_may,
        test_who_does_not_stop_is_not_waited_for_long,
        test_a_moment_is_not_longer_than_it_was_to_be,
        test_all_moments_together_take_little,
        test_a_guest_that_is_gone_is_forgotten,
        test_a_wish_for_a_slot_that_is_none_is_none,
    };

    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
