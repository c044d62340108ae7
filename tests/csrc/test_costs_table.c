/* SPDX-License-Identifier: Apache-2.0 */
/* test_costs_table.c -- the table of the cost model: places, eviction, destroyed handles. */
#include "check.h"
#include "core/compiler.h"
#include "cost_learning.h"

/* A shape with this place in the table, distinguished from others there by its number. */
static struct costs_key shape_at(uint64_t place, uint64_t number)
{
    return (struct costs_key) {place << (64 - COSTS_BITS) | number << 1, number};
}

static void test_two_shapes_share_a_place(void)
{
    struct costs_key first = shape_at(77, 1), second = shape_at(77, 2);

    learn_alone(first, 10 * US);
    learn_alone(second, 30 * US);
    CHECK("each has an entry", make(first) != make(second));
    CHECK("the first where it is looked up", costs_find(&costs, &first) == make(first));
    CHECK("the other one beside it", !costs_find(&costs, &second));
    CHECK_EQUAL("of its own", expected(first), 10 * US);
    CHECK_EQUAL("of its own", expected(second), 30 * US);
}

static void test_less_known_entry_is_evicted(void)
{
    struct costs_key first = shape_at(78, 1), second = shape_at(78, 2), third = shape_at(78, 3);
    struct costs_key fourth = shape_at(78, 4), beside = shape_at(79, 5);

    learn_alone(first, 10 * US);
    make(second);
    CHECK("a guess", make(third) != make(first));
    CHECK_EQUAL("what was measured stays", expected(first), 10 * US);
    learn_alone(third, 30 * US);
    CHECK_EQUAL("if both were measured one goes", expected(fourth), COSTS_GUESS_NS);
    CHECK_EQUAL("and no more", costs.shapes[78].state + costs.shapes[79].state,
                COST_GUESSED + COST_MEASURED);
    learn_alone(beside, 50 * US);
    CHECK_EQUAL("a shape of the neighbouring place evicts the guess", expected(beside), 50 * US);
    CHECK_EQUAL("and not what was measured", expected(third), 30 * US);
}

static void test_reused_entry_keeps_nothing(void)
{
    struct costs_key first = shape_at(80, 1), second = shape_at(80, 2), third = shape_at(80, 3);
    struct cost *cost = make(first);

    learn_alone(first, 50 * US);
    learn_alone(second, 50 * US);
    for (int i = 0; i < 10; i++)
        learn_queued(first, 800 * US, 400 * US);
    cost->pending = 1;
    CHECK("the first was evicted", make(third) == cost);
    CHECK("not pending", !cost->pending);
    CHECK_EQUAL("no mean", cost->count, 0);
    learn_queued(third, 900 * US, 450 * US);
    CHECK_EQUAL("nor what others were seen to take", expected(third), 900 * US);
}

/* Between a launch and its measurement its entry may have become that of another shape. */
static void test_evicted_shape_learns_nothing(void)
{
    struct costs_key first = shape_at(90, 1), second = shape_at(90, 2), third = shape_at(90, 3);
    struct cost *cost = make(first);

    learn_alone(second, 30 * US);
    CHECK("the entry is another's", make(third) == cost);
    costs_learn(&costs, cost, &first, &(struct costs_sample) {.ns = 5 * MS, .alone = 1});
    CHECK_EQUAL("which has learned nothing", expected(third), COSTS_GUESS_NS);
    CHECK_EQUAL("and is a guess", make(third)->state, COST_GUESSED);
    CHECK_EQUAL("nor has its function", expected(costs_key(first.function, 7)), COSTS_GUESS_NS);
}

static void test_destroyed_handle_is_forgotten(void)
{
    struct costs_key key = costs_key(0x8000, 0), other = costs_key(0x8001, 0);

    learn_alone(key, 80 * US);
    learn_alone(other, 90 * US);
    costs_forget(&costs, &key);
    CHECK("it has no entry", !costs_find(&costs, &key));
    CHECK_EQUAL("nor has its function", expected(key), COSTS_GUESS_NS);
    CHECK_EQUAL("it is a new one", make(key)->state, COST_GUESSED);
    CHECK_EQUAL("others stay", expected(other), 90 * US);
    costs_forget(&costs, &(struct costs_key) {12345, 54321});
    CHECK_EQUAL("a handle that never was takes no entry with it", expected(other), 90 * US);
}

static void test_shape_in_second_place_is_forgotten(void)
{
    struct costs_key first = shape_at(91, 1), second = shape_at(91, 2);

    learn_alone(first, 10 * US);
    learn_alone(second, 30 * US);
    costs_forget(&costs, &second);
    CHECK_EQUAL("it is new", expected(second), COSTS_GUESS_NS);
    CHECK_EQUAL("the first stays", expected(first), 10 * US);
}

static void test_hundred_thousand_shapes(void)
{
    enum { MEASURED = 1000, SHAPES = 100000 };
    int kept = 0, found = 0, wrong = 0;

    for (uint64_t i = 0; i < MEASURED; i++)
        learn_alone(costs_key(0x9000 + i, 1), (int64_t) (100 + i) * US);
    for (uint64_t i = 0; i < SHAPES; i++) {
        struct costs_key key = costs_key(0x900000, i);
        struct cost *cost = make(key);

        wrong += cost->ns != COSTS_GUESS_NS || make(key) != cost;
    }
    for (uint64_t i = 0; i < SHAPES; i++) {
        struct costs_key key = costs_key(0x900000, i);

        found += costs_find(&costs, &key) != NULL;
    }
    for (uint64_t i = 0; i < MEASURED; i++)
        kept += expected(costs_key(0x9000 + i, 1)) == (int64_t) (100 + i) * US;
    CHECK_EQUAL("each is guessed", wrong, 0);
    CHECK("many are remembered", found > 30000 && found <= 1 << COSTS_BITS);
    CHECK("what was measured is not lost by it", kept > MEASURED * 95 / 100);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_two_shapes_share_a_place,      test_less_known_entry_is_evicted,
        test_reused_entry_keeps_nothing,    test_evicted_shape_learns_nothing,
        test_destroyed_handle_is_forgotten, test_shape_in_second_place_is_forgotten,
        test_hundred_thousand_shapes,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        memset(&costs, 0, sizeof(costs));
        tests[i]();
    }
    return check_end();
}
