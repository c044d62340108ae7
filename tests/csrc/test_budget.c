/* SPDX-License-Identifier: Apache-2.0 */
/* test_budget.c -- a container's budget (token bucket): refill, cap, charges. */
#include "core/budget.h"
#include "check.h"

#include <pthread.h>

#define MS   INT64_C(1000000)
#define HALF (CLOCK_WHOLE / 2)
#define KEEP (100 * MS)

static struct usage_compute shared;

/* Set up a budget of so much that was last filled at *now*. */
static void have(int64_t budget_ns, uint64_t now)
{
    memset(&shared, 0, sizeof(shared));
    shared.refilled_ns = now;
    shared.budget_ns = budget_ns;
}

static void test_new_container_starts_with_small_budget(void)
{
    memset(&shared, 0, sizeof(shared));
    budget_fill(&shared, HALF, KEEP, KEEP, 5000 * MS);
    CHECK_EQUAL("whenever that is", budget_left(&shared), BUDGET_START_NS);
    CHECK_EQUAL("it is filled up to now", shared.refilled_ns, 5000 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 5000 * MS);
    CHECK_EQUAL("and not twice", budget_left(&shared), BUDGET_START_NS);
}

static void test_budget_fills_at_its_rate(void)
{
    have(-30 * MS, 1000 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 1020 * MS);
    CHECK_EQUAL("a half of 20 ms", budget_left(&shared), -20 * MS);
    budget_fill(&shared, CLOCK_WHOLE, KEEP, KEEP, 1025 * MS);
    CHECK_EQUAL("all of 5 ms", budget_left(&shared), -15 * MS);
    budget_fill(&shared, 1, KEEP, KEEP, 1025 * MS + CLOCK_WHOLE * 10);
    CHECK_EQUAL("next to nothing", budget_left(&shared), -15 * MS + 10);
    CHECK_EQUAL("and it is filled up to then", shared.refilled_ns, 1025 * MS + CLOCK_WHOLE * 10);
}

/* Without care, each of many fills in quick succession would lose a fraction of a nanosecond. */
static void test_frequent_fills_lose_no_fraction(void)
{
    int64_t rate = CLOCK_WHOLE / 100;
    int64_t due = 1000 * MS * rate / CLOCK_WHOLE;

    have(-100 * MS, 1000 * MS);
    for (uint64_t now = 1000 * MS; now <= 2000 * (uint64_t) MS; now += 137)
        budget_fill(&shared, (uint32_t) rate, KEEP, KEEP, now);
    CHECK("within a hundredth", budget_left(&shared) <= -100 * MS + due &&
                                    budget_left(&shared) >= -100 * MS + due - due / 100);
}

static void test_budget_is_capped_at_income_of_a_period(void)
{
    have(0, 1000 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 1100 * MS);
    CHECK_EQUAL("all of that time", budget_left(&shared), 50 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 1200 * MS);
    CHECK_EQUAL("not more", budget_left(&shared), 50 * MS);
    budget_fill(&shared, HALF, 3 * KEEP, 3 * KEEP, 1300 * MS);
    CHECK_EQUAL("than is kept", budget_left(&shared), 100 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 1310 * MS);
    CHECK_EQUAL("less may be kept from now on", budget_left(&shared), 50 * MS);
    have(0, 1000 * MS);
    budget_fill(&shared, CLOCK_WHOLE / 100, MS, MS, 1900 * MS);
    CHECK_EQUAL("what it begins with is always kept", budget_left(&shared), BUDGET_START_NS);
}

static void test_what_is_not_kept_is_saved(void)
{
    have(0, 1000 * MS);
    budget_fill(&shared, HALF, KEEP, 5 * KEEP, 1300 * MS);
    CHECK_EQUAL("kept", budget_left(&shared), 50 * MS);
    CHECK_EQUAL("saved", shared.saved_ns, 100 * MS);
    budget_fill(&shared, HALF, KEEP, 5 * KEEP, 2300 * MS);
    CHECK_EQUAL("not more than the share of that time", shared.saved_ns, 200 * MS);
    budget_draw(&shared, 30 * MS);
    CHECK_EQUAL("drawn", budget_left(&shared), 80 * MS);
    CHECK_EQUAL("and not saved any more", shared.saved_ns, 170 * MS);
    budget_charge(&shared, 80 * MS);
    budget_draw(&shared, 500 * MS);
    CHECK_EQUAL("no more than there is", budget_left(&shared), 170 * MS);
    CHECK_EQUAL("which is all", shared.saved_ns, 0);
    budget_draw(&shared, MS);
    CHECK_EQUAL("nothing", budget_left(&shared), 170 * MS);
    shared.saved_ns = -5 * MS;
    budget_draw(&shared, MS);
    CHECK_EQUAL("nor from a forged value", budget_left(&shared), 170 * MS);
    shared.saved_ns = INT64_MAX;
    budget_fill(&shared, HALF, KEEP, 5 * KEEP, 2310 * MS);
    CHECK("which the next fill mends", shared.saved_ns <= 200 * MS);
}

static void test_charge_and_refund(void)
{
    have(10 * MS, 1000 * MS);
    budget_charge(&shared, 3 * MS);
    CHECK_EQUAL("charged", budget_left(&shared), 7 * MS);
    CHECK_EQUAL("which is counted", shared.busy_ns, 3 * MS);
    budget_charge(&shared, 20 * MS);
    CHECK_EQUAL("into debt", budget_left(&shared), -13 * MS);
    budget_charge(&shared, -8 * MS);
    CHECK_EQUAL("refunded", budget_left(&shared), -5 * MS);
    CHECK_EQUAL("which is not counted", shared.busy_ns, 15 * MS);
    CHECK_EQUAL("none of it is time", shared.refilled_ns, 1000 * MS);
}

static void test_debt_is_bounded(void)
{
    have(0, 1000 * MS);
    budget_charge(&shared, INT64_MAX / 4);
    CHECK_EQUAL("a minute", budget_left(&shared), -60000 * MS);
    CHECK_EQUAL("of which no more is counted", shared.busy_ns, 60000 * MS);
    budget_charge(&shared, 5 * MS);
    CHECK_EQUAL("no further", budget_left(&shared), -60000 * MS);
    budget_charge(&shared, -5 * MS);
    CHECK_EQUAL("but back", budget_left(&shared), -59995 * MS);
    have(-70000 * MS, 1000 * MS);
    budget_charge(&shared, 5 * MS);
    CHECK_EQUAL("a larger one does not become less by it", budget_left(&shared), -70000 * MS);
}

static void test_times_of_another_boot_are_ignored(void)
{
    static const struct {
        const char *sentence;
        uint64_t refilled_ns;
        int64_t left; /* of a debt of 10 ms, at 5000 s */
    } rows[] = {
        {"far in the future", UINT64_MAX / 2, -8 * MS},
        {"a second in the future", 5001000 * MS, -8 * MS},
        {"another thread's now", 5000001 * MS, -10 * MS},
        {"more than an hour ago", 5000000 * MS - 3600001 * MS, -8 * MS},
        {"a minute ago", 5000000 * MS - 60000 * MS, 50 * MS},
        {"never", 0, -8 * MS},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        have(-10 * MS, rows[i].refilled_ns);
        budget_fill(&shared, HALF, KEEP, KEEP, 5000000 * MS);
        CHECK_EQUAL(rows[i].sentence, budget_left(&shared), rows[i].left);
    }
    have(-10 * MS, UINT64_MAX / 2);
    budget_fill(&shared, HALF, KEEP, KEEP, 5000 * MS);
    budget_fill(&shared, HALF, KEEP, KEEP, 5010 * MS);
    CHECK_EQUAL("it goes on from there", budget_left(&shared), -3 * MS);
}

static void test_predicted_wait_is_sufficient(void)
{
    static const uint32_t rates[] = {1, 655, 6554, HALF, 65535, CLOCK_WHOLE};
    static const int64_t needs[] = {0, 1, 999, 20000, MS, 7 * MS + 3, 1000 * MS};

    for (size_t i = 0; i < sizeof(rates) / sizeof(*rates); i++)
        for (size_t j = 0; j < sizeof(needs) / sizeof(*needs); j++) {
            int64_t time = budget_time_for(needs[j], rates[i]);
            int64_t rounding = CLOCK_WHOLE / rates[i] + 20000; /* one more, or too little to fill */

            have(-needs[j], 1000 * MS);
            budget_fill(&shared, rates[i], KEEP, KEEP, 1000 * MS + (uint64_t) time);
            CHECK("or an hour has passed", budget_left(&shared) >= 0 || time > 3600000 * MS);
            CHECK("and not much later",
                  budget_part(time - rounding, rates[i]) <= needs[j] || time <= 20000);
        }
}

enum { THREADS = 4, ROUNDS = 40, FILLS = 10000 };

static pthread_barrier_t round_begins;
static uint64_t next_ns = 1000 * MS;

/* Each thread draws the next time stamp and fills the budget with it, perhaps out of order. A round
 * is shorter than a second, so that no time seems to be of another boot. */
static void *fill_and_charge(void *unused)
{
    for (int i = 0; i < ROUNDS * FILLS; i++) {
        uint64_t now;

        if (i % FILLS == 0)
            pthread_barrier_wait(&round_begins);
        now = __atomic_add_fetch(&next_ns, 20002, __ATOMIC_RELAXED);
        budget_fill(&shared, HALF, 1000000 * MS, 1000000 * MS, now);
        budget_charge(&shared, 7);
        budget_charge(&shared, -3);
    }
    return unused;
}

static void test_concurrent_fills_count_once(void)
{
    pthread_t threads[THREADS];
    int64_t charged = (int64_t) THREADS * ROUNDS * FILLS * 4;
    int64_t passed;

    have(0, next_ns);
    pthread_barrier_init(&round_begins, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, fill_and_charge, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&round_begins);
    budget_fill(&shared, HALF, 1000000 * MS, 1000000 * MS, next_ns + MS);
    passed = (int64_t) next_ns + MS - 1000 * MS;
    CHECK_EQUAL("all charges are counted", shared.busy_ns, charged);
    CHECK_EQUAL("and all of the time, once", budget_left(&shared) + charged, passed / 2);
}

int main(void)
{
    test_new_container_starts_with_small_budget();
    test_budget_fills_at_its_rate();
    test_frequent_fills_lose_no_fraction();
    test_budget_is_capped_at_income_of_a_period();
    test_what_is_not_kept_is_saved();
    test_charge_and_refund();
    test_debt_is_bounded();
    test_times_of_another_boot_are_ignored();
    test_predicted_wait_is_sufficient();
    test_concurrent_fills_count_once();
    return check_end();
}
