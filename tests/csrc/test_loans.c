/* SPDX-License-Identifier: Apache-2.0 */
/* test_loans.c -- lending of idle shares, by limit and by priority. */
#include "check.h"
#include "lending_scene.h"

/* A container's behaviour: its work in each tick, and whether it waits for budget. settle() runs
 * the containers for 200 ms. */
struct habit {
    uint32_t own;
    uint32_t limit;
    uint32_t works; /* percent of each tick */
    int waits;
    enum lending_priority priority;
};

static uint32_t settle(const struct habit *habits)
{
    set_scene(TENANTS);
    for (unsigned i = 0; i < TENANTS; i++) {
        scene.tenants[i].own = habits[i].own * PERCENT;
        scene.tenants[i].limit = habits[i].limit * PERCENT;
        scene.tenants[i].priority = habits[i].priority;
    }
    for (unsigned tick = 0; tick < 40; tick++) {
        for (unsigned i = 0; i < TENANTS; i++) {
            give(i, TICK_NS * habits[i].works / 100);
            if (habits[i].waits)
                lending_wait(&scene.tenants[i], scene.lending.now_ns);
        }
        pass(TICK_NS);
        for (unsigned i = 0; i < TENANTS; i++)
            finish(i, TICK_NS * habits[i].works / 100);
    }
    return scene.lending.lent;
}

static void idle_shares_are_lent(void)
{
    static const struct {
        const char *sentence;
        struct habit habits[TENANTS];
        double lent, margin; /* per unit of own share */
    } rows[] = {
        {"alone, all of the rest", {{25, 100, 25, 1, 0}}, 3.0, 0.01},
        {"up to its limit", {{25, 40, 25, 1, 0}}, 0.6, 0.01},
        {"a hard one gets nothing", {{25, 25, 25, 1, 0}}, 0, 0},
        {"without waiting nothing is needed", {{25, 100, 10, 0, 0}}, 0, 0},
        {"a busy neighbour lends nothing", {{25, 100, 25, 1, 0}, {75, 75, 75, 1, 0}}, 0, 0.01},
        {"an idle share is lent",
         {{25, 100, 25, 1, 0}, {50, 50, 50, 1, 0}, {25, 25, 0, 0, 0}},
         1.0,
         0.01},
        {"two divide in proportion to their shares",
         {{20, 100, 20, 1, 0}, {40, 100, 40, 1, 0}, {40, 40, 0, 0, 0}},
         2.0 / 3,
         0.01},
        {"the other gets what exceeds one's limit",
         {{20, 30, 20, 1, 0}, {40, 100, 40, 1, 0}},
         0.75,
         0.01},
        {"a barely used share is mostly lent",
         {{50, 100, 50, 1, 0}, {50, 50, 10, 0, 0}},
         0.71,
         0.05},
        {"a borrower keeps its loan without waiting", {{25, 100, 90, 0, 0}}, 3.0, 0.01},
        {"overcommitted shares lend nothing", {{60, 100, 50, 1, 0}, {60, 60, 50, 1, 0}}, 0, 0},
    };

    for (unsigned row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
        double lent = (double) settle(rows[row].habits) / CLOCK_WHOLE;

        CHECK(rows[row].sentence, lent >= rows[row].lent - rows[row].margin &&
                                      lent <= rows[row].lent + rows[row].margin);
    }
}

static void lent_share_is_reclaimed_at_once(void)
{
    static const struct habit habits[TENANTS] = {{25, 100, 25, 1, 0}, {75, 75, 0, 0, 0}};

    CHECK("it is lent while its owner is idle", settle(habits) > 2 * CLOCK_WHOLE);
    lending_wait(&scene.tenants[0], scene.lending.now_ns);
    give(1, TICK_NS / 10);
    pass(TICK_NS);
    CHECK("not in the tick in which the owner has work", scene.lending.lent < PERCENT);
}

static double most_lent(const struct lending_container *tenant)
{
    return (double) (tenant->limit - tenant->own) / (double) tenant->own;
}

static void shares_are_lent_by_priority(void)
{
    static const struct {
        const char *sentence;
        struct habit habits[TENANTS];
        double lent[TENANTS]; /* per unit of own share */
    } rows[] = {
        {"high before normal",
         {{20, 40, 20, 1, LENDING_NORMAL}, {40, 60, 40, 1, LENDING_HIGH}},
         {1, 0.5}},
        {"normal gets what high leaves",
         {{20, 100, 20, 1, LENDING_NORMAL}, {40, 60, 40, 1, LENDING_HIGH}},
         {1, 0.5}},
        {"high may have the whole unallocated rest",
         {{20, 100, 20, 1, LENDING_NORMAL}, {40, 100, 40, 1, LENDING_HIGH}},
         {0, 1}},
        {"normal's own share is not lent to high",
         {{60, 60, 60, 1, LENDING_NORMAL}, {40, 100, 40, 1, LENDING_HIGH}},
         {0, 0}},
        {"nothing is kept for low",
         {{50, 50, 50, 1, LENDING_LOW}, {50, 100, 50, 1, LENDING_NORMAL}},
         {0, 1}},
        {"low gets the rest",
         {{20, 100, 20, 1, LENDING_LOW}, {40, 60, 40, 1, LENDING_NORMAL}},
         {1, 0.5}},
        {"low lends to low as others do",
         {{25, 100, 25, 1, LENDING_LOW}, {50, 50, 0, 0, LENDING_LOW}, {25, 25, 25, 1, LENDING_LOW}},
         {2, 0}},
    };

    for (unsigned row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
        settle(rows[row].habits);
        for (unsigned i = 0; i < 2; i++) {
            double lent = (double) scene.tenants[i].lent / CLOCK_WHOLE;
            double most = most_lent(&scene.tenants[i]);

            lent = lent < most ? lent : most; /* the shim applies the limit */
            CHECK(rows[row].sentence,
                  lent >= rows[row].lent[i] - 0.01 && lent <= rows[row].lent[i] + 0.01);
        }
    }
}

int main(void)
{
    idle_shares_are_lent();
    lent_share_is_reclaimed_at_once();
    shares_are_lent_by_priority();
    return check_end();
}
