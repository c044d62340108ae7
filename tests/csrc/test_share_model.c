/* SPDX-License-Identifier: Apache-2.0 */
/* test_share_model.c -- the law of shares, scene by scene: who gets how much of a device, alone and
 * beside neighbours, and when something is wrong. Virtual time: hundreds of scenes in seconds.
 *
 * Work is what the device did for a tenant, in windows. L is the longest launch of the scene.
 */
#include <math.h>
#include <stdbool.h>

#include "check.h"
#include "compiler.h"
#include "share_world.h"

static double worst_seen;
static const char *worst_name;
static unsigned scenes;
static double most_error;

/* The bounds, in points of the device. */
struct bounds {
    uint64_t window_ns;
    double mean, worst;
};

static uint64_t longest_launch(const struct scene *scene)
{
    uint64_t longest = 0;

    for (unsigned i = 0; i < WORLD_TENANTS; i++) {
        const struct tenant_plan *plan = &scene->tenants[i];
        uint64_t own = plan->length_ns > plan->other_ns ? plan->length_ns : plan->other_ns;

        if (plan->later_ns > own)
            own = plan->later_ns;
        if (own > longest)
            longest = own;
    }
    return longest;
}

static struct bounds bounds_for(uint64_t longest_ns)
{
    struct bounds bounds = {.window_ns = WORLD_S};
    double part;

    if (longest_ns > 25 * WORLD_MS)
        bounds.window_ns = (50 * longest_ns + WORLD_STEP - 1) / WORLD_STEP * WORLD_STEP;
    part = 100.0 * (double) longest_ns / (double) bounds.window_ns;
    bounds.mean = fmax(1, 0.6 * part);
    bounds.worst = fmax(3, 1.2 * part);
    return bounds;
}

static double share_between(unsigned tenant, uint64_t from_ns, uint64_t until_ns)
{
    return 100.0 * (double) world_work(tenant, from_ns, until_ns) / (double) (until_ns - from_ns);
}

static void fail(const char *name, unsigned tenant, const char *what, double got, double allowed)
{
    check_failed++;
    fprintf(stderr, "%s: tenant %u: %s: %.2f, allowed %.2f\n", name, tenant, what, got, allowed);
}

static void expect_at_most(const char *name, unsigned tenant, const char *what, double got,
                           double allowed)
{
    if (got > allowed)
        fail(name, tenant, what, got, allowed);
    else
        check_passed++;
    if (got / allowed > worst_seen) {
        worst_seen = got / allowed;
        worst_name = what;
    }
}

/* From *from_ns* on, until the end of the scene or *until_ns*. */
static void expect_share(const char *name, const struct scene *scene, unsigned tenant,
                         double expected, uint64_t from_ns, uint64_t until_ns)
{
    struct bounds bounds = bounds_for(longest_launch(scene));
    double sum = 0, worst = 0, mean = 0;
    unsigned windows = 0;

    for (; from_ns + bounds.window_ns <= until_ns; from_ns += bounds.window_ns) {
        double share = share_between(tenant, from_ns, from_ns + bounds.window_ns);

        sum += fabs(share - expected);
        mean += share;
        worst = fmax(worst, fabs(share - expected));
        windows++;
    }
    if (!windows)
        abort();
    if (getenv("SHARE_MODEL_VERBOSE"))
        printf("%-48s tenant %u: %5.1f: mean error %.2f, worst %.2f\n", name, tenant, expected,
               sum / windows, worst);
    most_error = fmax(most_error, sum / windows);
    expect_at_most(name, tenant, "mean error", sum / windows, bounds.mean);
    expect_at_most(name, tenant, "worst window", worst, bounds.worst);
    expect_at_most(name, tenant, "work missing", expected - mean / windows,
                   fmax(fmax(0.03 * expected, 0.3), 0.6 * 100.0 * (double) longest_launch(scene) /
                                                        (double) (windows * bounds.window_ns)));
}

static uint64_t settling_time(const struct scene *scene)
{
    uint64_t longest = longest_launch(scene);
    uint64_t time = longest <= WORLD_MS ? 100 * WORLD_MS : 150 * longest;

    for (unsigned i = 2; i < WORLD_TENANTS && scene->tenants[i].length_ns; i++)
        time += 50 * WORLD_MS; /* they are measured one after the other */

    return (time + WORLD_STEP - 1) / WORLD_STEP * WORLD_STEP;
}

static uint64_t enough(const struct scene *scene, unsigned windows)
{
    return settling_time(scene) + windows * bounds_for(longest_launch(scene)).window_ns;
}

static void run(struct scene *scene)
{
    scenes++;
    scene->seed = scenes;
    if (scene->arbiter != ARBITER_WORKS && !scene->arbiter_change_ns)
        scene->arbiter_change_ns = 100 * WORLD_MS;
    world_run(scene);
}

/* Every tenant is to get its cap. */
static void expect_caps(const char *name, struct scene *scene)
{
    scene->duration_ns = enough(scene, 4);
    run(scene);
    for (unsigned i = 0; i < WORLD_TENANTS && scene->tenants[i].length_ns; i++)
        if (scene->tenants[i].vcore && !scene->tenants[i].off_ns)
            expect_share(name, scene, i, scene->tenants[i].vcore, settling_time(scene),
                         scene->duration_ns);
}

static const unsigned caps[] = {5, 10, 25, 50, 75, 90, 95};
static const uint64_t lengths_us[] = {15, 280, 1000, 1500, 8000, 20000, 28000};
static const uint64_t late_ms[] = {0, 3};

static void test_alone(void)
{
    char name[100];

    for (size_t c = 0; c < ARRAY_SIZE(caps); c++)
        for (size_t l = 0; l < ARRAY_SIZE(lengths_us); l++)
            for (size_t w = 0; w < ARRAY_SIZE(late_ms); w++) {
                struct scene scene = {
                    .tenants = {{.vcore = caps[c], .length_ns = lengths_us[l] * WORLD_US}},
                    .late_ns = late_ms[w] * WORLD_MS};

                snprintf(name, sizeof(name), "alone, %u, %u us, late %u ms", caps[c],
                         (unsigned) lengths_us[l], (unsigned) late_ms[w]);
                expect_caps(name, &scene);
                if (lengths_us[l] <= 1000)
                    for (uint64_t at = 0; at < WORLD_S; at += 100 * WORLD_MS)
                        expect_at_most(name, 0, at ? "in 100 ms" : "at first",
                                       fabs(share_between(0, at, at + 100 * WORLD_MS) - caps[c]),
                                       at ? 3 : 5 + lengths_us[l] * 1e-3);
            }
}

static const unsigned splits[][9] = {
    {30, 70},
    {50, 50},
    {10, 90},
    {5, 95},
    {20, 20},
    {25, 25, 25, 25},
    {10, 20, 30, 40},
    {60, 20, 10, 10},
    {12, 12, 12, 12, 12, 12, 12, 12},
    {5, 5, 5, 5, 10, 10, 20, 40},
};

enum { MANY = 8 };

static const struct mix {
    uint64_t even_us, odd_us; /* launches of every second tenant */
} mixes[] = {
    {15, 15},      {280, 280},   {15, 280},    {20000, 20000}, {28000, 28000},
    {280, 20000},  {20000, 280}, {15, 8000},   {8000, 15},     {8000, 8000},
    {1500, 28000}, {1000, 8000}, {1000, 1000},
};

/* Of eight, each must be measured alone before all is as it should be, and the device has nothing
 * left over in which to make up for what was not: they keep the bounds on average. */
static void expect_caps_of_many(const char *name, struct scene *scene)
{
    struct bounds bounds = bounds_for(longest_launch(scene));
    unsigned count = 0;
    double sum = 0;

    scene->duration_ns = enough(scene, 4);
    run(scene);
    for (; scene->tenants[count].length_ns; count++)
        sum += fabs(share_between(count, settling_time(scene), scene->duration_ns) -
                    scene->tenants[count].vcore);
    expect_at_most(name, count, "mean error of all", sum / count, bounds.mean);
}

static void test_beside_others(void)
{
    char name[100];

    for (size_t m = 0; m < ARRAY_SIZE(mixes); m++)
        for (size_t s = 0; s < ARRAY_SIZE(splits) * ARRAY_SIZE(late_ms); s++) {
            const unsigned *split = splits[s / ARRAY_SIZE(late_ms)];
            struct scene scene = {.late_ns = late_ms[s % ARRAY_SIZE(late_ms)] * WORLD_MS};
            uint64_t us[2] = {mixes[m].even_us, mixes[m].odd_us};

            for (unsigned i = 0; split[i]; i++)
                scene.tenants[i] =
                    (struct tenant_plan) {.vcore = split[i], .length_ns = us[i % 2] * WORLD_US};
            snprintf(name, sizeof(name), "%u/%u.., %u and %u us", split[0], split[1],
                     (unsigned) us[0], (unsigned) us[1]);
            if (split[MANY - 1])
                expect_caps_of_many(name, &scene);
            else
                expect_caps(name, &scene);
        }
}

static void test_streams_processes_and_mixtures(void)
{
    static const struct {
        const char *name;
        struct tenant_plan plan;
    } rows[] = {
        {"4 streams of a quarter of the device", {.length_ns = 280000, .streams = 4, .units = 32}},
        {"4 processes", {.length_ns = 280000, .processes = 4}},
        {"4 processes of 8 ms", {.length_ns = 8000000, .processes = 4}},
        {"two kernels", {.length_ns = 15000, .other_ns = 1000000}},
        {"launch and wait, 1 ms", {.length_ns = 1000000, .synchronous = 1}},
        {"launch and wait, 8 ms", {.length_ns = 8000000, .synchronous = 1}},
        {"4 streams of the whole device", {.length_ns = 280000, .streams = 4}},
        {"4 streams of the whole device, 8 ms", {.length_ns = 8000000, .streams = 4}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (size_t c = 1; c < 4; c++) {
            struct scene scene = {.tenants = {rows[i].plan}};

            scene.tenants[0].vcore = caps[c];
            expect_caps(rows[i].name, &scene);
        }
}

static void test_an_arbiter_that_is_not_right_gives_nobody_more(void)
{
    static const enum arbiter_mode modes[] = {ARBITER_ABSENT, ARBITER_FROZEN, ARBITER_LIES,
                                              ARBITER_LENDS};

    for (size_t m = 0; m < ARRAY_SIZE(modes); m++)
        for (size_t l = 0; l < ARRAY_SIZE(lengths_us); l++) {
            struct scene scene = {.tenants = {{.vcore = 40, .length_ns = lengths_us[l] * WORLD_US}},
                                  .arbiter = modes[m],
                                  .arbiter_change_ns = 500 * WORLD_MS};

            expect_caps("alone with an arbiter that is not right", &scene);
            scene = (struct scene) {
                .tenants = {{.vcore = 20, .limit = 50, .length_ns = lengths_us[l] * WORLD_US},
                            {.vcore = 30, .length_ns = lengths_us[l] * WORLD_US}},
                .arbiter = modes[m],
                .arbiter_change_ns = 500 * WORLD_MS,
                .duration_ns = 8 * WORLD_S};
            run(&scene);
            expect_at_most("an arbiter that is not right", 0, "more than its limit",
                           share_between(0, WORLD_S, 8 * WORLD_S), 52);
        }
}

static void test_a_container_that_claims_work_takes_no_share_from_another(void)
{
    for (size_t l = 0; l < ARRAY_SIZE(lengths_us); l++) {
        uint64_t length = lengths_us[l] * WORLD_US;
        struct scene scene = {
            .tenants = {{.vcore = 10, .length_ns = length},
                        {.vcore = 20, .length_ns = length, .processes = 40, .lies = 1},
                        {.vcore = 70, .length_ns = length}},
            .duration_ns = 8 * WORLD_S};

        run(&scene);
        expect_at_most("10 and 70 beside a liar of 20", 2, "work missing",
                       70 - share_between(2, 2 * WORLD_S, 8 * WORLD_S), 3);
    }
}

static void test_a_new_graph_each_time_is_paid_in_full(void)
{
    struct scene scene = {.tenants = {{.vcore = 10, .length_ns = 500 * WORLD_MS, .fresh = 1}},
                          .duration_ns = 50 * WORLD_S};

    run(&scene);
    expect_at_most("500 ms, new each time", 0, "off", fabs(share_between(0, 0, 50 * WORLD_S) - 10),
                   1.01);
}

static void test_a_kernel_that_becomes_100_times_as_long(void)
{
    struct scene scene = {.tenants = {{.vcore = 40,
                                       .length_ns = 15 * WORLD_US,
                                       .later_ns = 1500 * WORLD_US,
                                       .change_ns = WORLD_S}},
                          .duration_ns = 12 * WORLD_S};

    run(&scene);
    for (uint64_t at = 0; at < 5; at++)
        expect_at_most("15 us, then 1.5 ms", 0, "off in a second",
                       fabs(share_between(0, at * WORLD_S, (at + 1) * WORLD_S) - 40), 5);
    expect_at_most("15 us, then 1.5 ms", 0, "too much 150 launches later",
                   share_between(0, 1225 * WORLD_MS / WORLD_STEP * WORLD_STEP, 2 * WORLD_S) - 40,
                   5);
    expect_at_most("15 us, then 1.5 ms", 0, "off in all",
                   fabs(share_between(0, WORLD_S, 11 * WORLD_S) - 40), 1);
    expect_at_most("15 us, then 1.5 ms", 0, "off at last",
                   fabs(share_between(0, 10 * WORLD_S, 12 * WORLD_S) - 40), 1);
}

static void change_often(uint64_t passed_ns)
{
    world_set(0, passed_ns < 2 * WORLD_S ? 20 + 20 * (unsigned) (passed_ns / WORLD_MS % 2) : 50);
}

static void test_a_share_that_is_set_1000_times_a_second(void)
{
    struct scene scene = {.tenants = {{.vcore = 30, .length_ns = 280 * WORLD_US}},
                          .script = change_often,
                          .duration_ns = 4 * WORLD_S};

    run(&scene);
    expect_at_most("set often", 0, "outside of both",
                   fabs(share_between(0, 200 * WORLD_MS, 2 * WORLD_S) - 30), 11);
    expect_at_most("set often", 0, "off in the first 100 ms after",
                   fabs(share_between(0, 2 * WORLD_S, 2100 * WORLD_MS) - 50), 5.3);
    expect_share("set often, then 50", &scene, 0, 50, 2100 * WORLD_MS, 4 * WORLD_S);
}

static void test_a_process_that_is_stopped(void)
{
    struct scene scene = {.tenants = {{.vcore = 50,
                                       .length_ns = 280 * WORLD_US,
                                       .processes = 2,
                                       .halt_ns = WORLD_S,
                                       .go_on_ns = 3 * WORLD_S},
                                      {.vcore = 30, .length_ns = 280 * WORLD_US}},
                          .duration_ns = 6 * WORLD_S};

    run(&scene);
    expect_share("stopped: the other of its container", &scene, 0, 50, WORLD_S, 3 * WORLD_S);
    expect_share("stopped: afterwards", &scene, 0, 50, 3 * WORLD_S, 6 * WORLD_S);
    expect_share("stopped: a neighbour", &scene, 1, 30, 100 * WORLD_MS, 6 * WORLD_S);
}

int main(void)
{
    test_alone();
    test_beside_others();
    test_streams_processes_and_mixtures();
    test_an_arbiter_that_is_not_right_gives_nobody_more();
    test_a_container_that_claims_work_takes_no_share_from_another();
    test_a_new_graph_each_time_is_paid_in_full();
    test_a_kernel_that_becomes_100_times_as_long();
    test_a_share_that_is_set_1000_times_a_second();
    test_a_process_that_is_stopped();
    printf("%u scenes; the largest mean error of those with bounds of their own: %.2f points; "
           "nearest to its bound: %s, %.0f %%\n",
           scenes, most_error, worst_name, 100 * worst_seen);
    return check_end();
}
