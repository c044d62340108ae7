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
                   fmax(0.03 * expected, 0.6 * 100.0 * (double) longest_launch(scene) /
                                             (double) (windows * bounds.window_ns)));
}

static uint64_t settling_time(const struct scene *scene)
{
    uint64_t longest = longest_launch(scene);
    uint64_t time = longest <= WORLD_MS ? 100 * WORLD_MS : 150 * longest;

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

static void test_beside_others(void)
{
    static const uint64_t mixes_us[][2] = {
        {15, 15},   {280, 280}, {1000, 1000}, {8000, 8000}, {20000, 20000}, {28000, 28000},
        {15, 8000}, {8000, 15}, {280, 20000}, {20000, 280}, {1500, 28000},  {1000, 8000}};
    char name[100];

    for (size_t s = 0; s < ARRAY_SIZE(splits); s++)
        for (size_t m = 0; m < ARRAY_SIZE(mixes_us); m++)
            for (size_t w = 0; w < ARRAY_SIZE(late_ms); w++) {
                struct scene scene = {.late_ns = late_ms[w] * WORLD_MS};

                for (unsigned i = 0; splits[s][i]; i++)
                    scene.tenants[i] = (struct tenant_plan) {
                        .vcore = splits[s][i], .length_ns = mixes_us[m][i % 2] * WORLD_US};
                snprintf(name, sizeof(name), "%u/%u/%u.., %u and %u us, late %u ms", splits[s][0],
                         splits[s][1], splits[s][2], (unsigned) mixes_us[m][0],
                         (unsigned) mixes_us[m][1], (unsigned) late_ms[w]);
                expect_caps(name, &scene);
            }
}

int main(void)
{
    test_alone();
    if (getenv("SHARE_MODEL_ALL"))
        test_beside_others();
    printf("%u scenes; the largest mean error is %.2f points; nearest to its bound: %s, %.0f %%\n",
           scenes, most_error, worst_name, 100 * worst_seen);
    return check_end();
}
