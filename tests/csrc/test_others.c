/* SPDX-License-Identifier: Apache-2.0 */
/* test_others.c -- device time of other containers, derived from the processes' published progress.
 */
#include "arbiter/others.h"
#include "check.h"

#include <string.h>

enum { TENANTS = 3, SPANS = 4000 };

#define UNIT  ((uint64_t) WORK_UNIT_NS)
#define CELL  ((uint64_t) OTHERS_CELL_NS)
#define MS    (4 * CELL) /* nearly */
#define START (UINT64_C(100000) * CELL)

static struct others others;
static struct others_container tenants[TENANTS];
static struct others_process lanes[TENANTS][2];
static struct progress progress[TENANTS][2];
static uint64_t words[TENANTS][2][PROGRESS_WORDS];
static int works[TENANTS][2]; /* has work now */
static int mute[TENANTS];     /* publishes no points */
static uint64_t seen_ns;

static void begin(void)
{
    memset(&others, 0, sizeof(others));
    memset(tenants, 0, sizeof(tenants));
    memset(lanes, 0, sizeof(lanes));
    memset(progress, 0, sizeof(progress));
    memset(words, 0, sizeof(words));
    memset(works, 0, sizeof(works));
    memset(mute, 0, sizeof(mute));
    for (unsigned i = 0; i < TENANTS; i++)
        for (unsigned j = 0; j < 2; j++)
            progress[i][j].words = words[i][j];
    seen_ns = START - MS;
}

static void work(unsigned tenant, uint64_t from_ns, uint64_t until_ns, uint64_t taken_ns)
{
    progress_add(&progress[tenant][0], START + from_ns, START + until_ns, (int64_t) taken_ns, 1);
}

static void inspect(uint64_t at_ns)
{
    struct others_container *all[TENANTS];

    for (unsigned i = 0; i < TENANTS; i++) {
        all[i] = &tenants[i];
        others_begin(&tenants[i], seen_ns, START + at_ns);
        for (unsigned j = 0; j < 2; j++)
            others_see(&others, &tenants[i], &lanes[i][j], j, mute[i] ? NULL : words[i][j],
                       works[i][j], seen_ns, START + at_ns);
    }
    others_find(&others, all, TENANTS);
    seen_ns = START + at_ns;
}

static uint32_t word_of(unsigned tenant, uint64_t at_ns)
{
    return tenants[tenant].beside[(START + at_ns) / CELL % OTHERS_CELLS];
}

/* The other containers' time between two ends of cells, beside this container. */
static uint64_t beside(unsigned tenant, uint64_t from_ns, uint64_t until_ns)
{
    uint64_t sum = 0;

    for (uint64_t at = from_ns; at < until_ns; at += CELL)
        sum += word_of(tenant, at) & OTHERS_NS_MASK;
    return sum;
}

static unsigned unsure(unsigned tenant, uint64_t from_ns, uint64_t until_ns)
{
    unsigned count = 0;

    for (uint64_t at = from_ns; at < until_ns; at += CELL)
        count += (word_of(tenant, at) & OTHERS_UNSURE) != 0;
    return count;
}

static int is_near(uint64_t value, uint64_t expected)
{
    uint64_t margin = 4 * UNIT;

    return value + margin >= expected && value <= expected + margin;
}

static void test_single_container_has_no_others(void)
{
    begin();
    work(0, 0, 10 * MS, 9 * MS);
    inspect(12 * MS);
    CHECK_EQUAL("all is known", others.known_ns, START + 12 * MS);
    CHECK_EQUAL("nothing", beside(0, 0, 12 * MS), 0);
    CHECK_EQUAL("for sure", unsure(0, 0, 12 * MS), 0);
    CHECK_EQUAL("at work in all parts", word_of(0, MS) >> OTHERS_PARTS_SHIFT, 64);
    CHECK_EQUAL("or in none", word_of(0, 11 * MS), 0);
    CHECK_EQUAL("nor a container that was not at work", beside(1, 0, 12 * MS), 0);
}

static void test_two_share_the_time_in_which_neither_is_alone(void)
{
    begin();
    work(0, 0, 10 * MS, 7 * MS);
    work(1, 2 * MS, 6 * MS, 3 * MS);
    inspect(10 * MS);
    CHECK("what the second had", is_near(beside(0, 2 * MS, 6 * MS), 3 * MS));
    CHECK("evenly", is_near(beside(0, 2 * MS, 4 * MS), 3 * MS / 2));
    CHECK_EQUAL("and not before it came", beside(0, 0, 2 * MS), 0);
    CHECK_EQUAL("nor after it went", beside(0, 6 * MS, 10 * MS), 0);
    CHECK("what the first one had beyond its time alone", is_near(beside(1, 0, 10 * MS), MS));
    CHECK_EQUAL("for sure", unsure(0, 0, 10 * MS) + unsure(1, 0, 10 * MS), 0);
}

static void test_partial_cell(void)
{
    begin();
    work(0, 0, 4 * CELL, 4 * CELL - CELL / 4);
    work(1, CELL + CELL / 4, CELL + 3 * CELL / 4, CELL / 4);
    inspect(8 * CELL);
    CHECK("all of it in that cell", is_near(beside(0, CELL, 2 * CELL), CELL / 4));
    CHECK("and nowhere else", is_near(beside(0, 0, 8 * CELL), CELL / 4));
    CHECK_EQUAL("where the other was for half", word_of(1, CELL) >> OTHERS_PARTS_SHIFT, 32);
    CHECK("and had the other half", is_near(beside(1, 0, 8 * CELL), CELL / 4));
}

static void test_three_containers(void)
{
    begin();
    work(0, 0, 8 * MS, 4 * MS);
    work(1, 0, 4 * MS, MS);
    work(2, 2 * MS, 8 * MS, 3 * MS);
    inspect(8 * MS);
    CHECK("both others", is_near(beside(0, 0, 8 * MS), 4 * MS));
    CHECK("of each that for which it met the first one, as far as is known",
          beside(1, 0, 8 * MS) > 2 * MS && beside(1, 0, 8 * MS) < 4 * MS);
}

static void test_guess_stays_a_guess_for_others(void)
{
    begin();
    work(0, 0, 10 * MS, 6 * MS);
    progress_add(&progress[1][0], START + 2 * MS, START + 4 * MS, (int64_t) MS, 0);
    inspect(10 * MS);
    CHECK_EQUAL("for the first one", unsure(0, 2 * MS, 4 * MS), 8);
    CHECK_EQUAL("then alone", unsure(0, 0, 10 * MS), 8);
    CHECK_EQUAL("its own is none for the other", unsure(1, 0, 10 * MS), 0);
}

static void test_unfinished_work_is_awaited(void)
{
    begin();
    works[0][0] = works[1][0] = 1;
    inspect(0);
    work(0, 0, 3 * MS, 2 * MS);
    inspect(5 * MS);
    CHECK("no later than the first one's last", others.known_ns <= START + 3 * MS);
    work(1, 0, 6 * MS, 2 * MS);
    work(0, 3 * MS, 6 * MS, 2 * MS);
    inspect(7 * MS);
    CHECK("what has come late is there", is_near(beside(0, 0, 6 * MS), 2 * MS));
    CHECK_EQUAL("and sure", unsure(0, 0, 6 * MS), 0);
    works[1][0] = 0;
    inspect(8 * MS);
    CHECK_EQUAL("a process without work is not awaited", tenants[1].until_ns, START + 8 * MS);
}

static void test_silent_process_is_not_awaited_forever(void)
{
    begin();
    works[0][0] = works[1][0] = 1;
    for (uint64_t at = 0; at < 100 * MS; at += 5 * MS) {
        if (at)
            work(0, at - 5 * MS, at, 3 * MS);
        inspect(at);
    }
    CHECK("40 ms later it is a guess",
          others.known_ns <= START + 95 * MS - PROGRESS_WAIT_NS &&
              others.known_ns + 5 * MS > START + 95 * MS - PROGRESS_WAIT_NS);
    CHECK("for the other", unsure(0, 10 * MS, 40 * MS) == 120);
    begin();
    mute[1] = works[0][0] = works[1][0] = 1;
    inspect(0);
    work(0, 0, 5 * MS, 3 * MS);
    inspect(5 * MS);
    CHECK_EQUAL("one that has no points at once", others.known_ns, START + 5 * MS);
    CHECK("for the other", unsure(0, CELL, 5 * MS) >= 18);
}

static void test_awaited_time_becomes_a_guess_when_others_start(void)
{
    struct others_container *all[] = {&tenants[0], &tenants[1]};

    begin();
    works[0][0] = works[1][0] = 1;
    inspect(0);
    work(0, 0, 8 * MS, 5 * MS);
    inspect(8 * MS);
    CHECK_EQUAL("it is awaited", others.span_count, 1);
    others_seat(&others, all, 2);
    CHECK_EQUAL("no more", others.span_count, 0);
    work(1, 0, 8 * MS, 3 * MS);
    inspect(9 * MS);
    CHECK("the other does not know", unsure(1, 0, 8 * MS) == 32);
    CHECK("what the other had is known", is_near(beside(0, 0, 8 * MS), 3 * MS));
    CHECK_EQUAL("for sure", unsure(0, 0, 8 * MS), 0);
}

static void test_processes_of_a_container_count_as_others(void)
{
    begin();
    work(0, 0, 8 * MS, 3 * MS);
    progress_add(&progress[0][1], START, START + 8 * MS, (int64_t) (3 * MS), 1);
    work(1, 0, 8 * MS, 2 * MS);
    inspect(8 * MS);
    CHECK_EQUAL("what they had beside each other is not known", unsure(0, 0, 8 * MS), 32);
    CHECK_EQUAL("to others it is", unsure(1, 0, 8 * MS), 0);
    CHECK("both of it", is_near(beside(1, 0, 8 * MS), 6 * MS));
}

static void test_reused_slot_starts_from_zero(void)
{
    begin();
    works[0][0] = 1;
    work(1, 0, 5 * MS, 5 * MS / 2);
    inspect(8 * MS);
    work(0, 0, 20 * MS, 15 * MS);
    memset(words[1][0], 0, sizeof(words[1][0]));
    progress[1][0] = (struct progress) {.words = words[1][0]};
    work(1, 10 * MS, 20 * MS, 5 * MS / 2);
    inspect(20 * MS);
    CHECK("what each of them had", is_near(beside(0, 0, 20 * MS), 5 * MS));
}

static void test_time_of_others_is_bounded(void)
{
    begin();
    work(0, 0, 8 * MS, MS);
    work(1, 0, 8 * MS, 4000 * MS);
    work(2, 0, 8 * MS, 4000 * MS);
    inspect(8 * MS);
    CHECK_EQUAL("a cell is a cell", beside(0, 0, 8 * MS), 8 * MS);
    work(1, 8 * MS, 4000 * MS, 100 * MS);
    work(0, 8 * MS, 4000 * MS, 100 * MS);
    inspect(4000 * MS);
    CHECK("of what is too old nothing is kept", others.known_ns == START + 4000 * MS);
    CHECK("and what is kept is even",
          is_near(beside(0, 3950 * MS, 3960 * MS), 10 * MS * 100 / 3992));
}

/* A device gives time slices of 4 cells to two processes, each with work now and then: the others'
 * time, while one has work, must equal the time that it waited. */
static void test_result_matches_a_simulated_device(void)
{
    static uint64_t had[2][SPANS];
    uint64_t at = 0, off = 0, whole = 0;
    unsigned seed = 7;

    begin();
    for (unsigned i = 0; i < 200; i++) {
        uint64_t from = at, length[2], left[2], late;

        seed = seed * 1664525u + 1013904223u;
        length[0] = (8 + (seed >> 16) % 16) * CELL;
        length[1] = (4 + (seed >> 20) % 8) * CELL;
        late = (seed >> 24) % 4 * CELL; /* the second one starts later */
        left[0] = length[0], left[1] = length[1];
        for (unsigned turn = 1; left[0] || left[1];) {
            uint64_t slice = 4 * CELL;
            unsigned next = at < from + late || !left[1] ? 0 : !left[0] ? 1 : (turn = !turn);

            slice = left[next] < slice ? left[next] : slice;
            if (at < from + late && at + slice > from + late)
                slice = from + late - at;
            left[next] -= slice;
            at += slice;
            if (!left[next])
                had[next][i] = at;
        }
        work(0, from, had[0][i], length[0]);
        work(1, from + late, had[1][i], length[1]);
        inspect(at + CELL);
        off += had[0][i] - from - length[0] > beside(0, from, had[0][i])
                   ? had[0][i] - from - length[0] - beside(0, from, had[0][i])
                   : beside(0, from, had[0][i]) - (had[0][i] - from - length[0]);
        whole += length[0];
        at += 6 * CELL;
    }
    CHECK("by less than a hundredth", off < whole / 100);
}

int main(void)
{
    test_single_container_has_no_others();
    test_two_share_the_time_in_which_neither_is_alone();
    test_partial_cell();
    test_three_containers();
    test_guess_stays_a_guess_for_others();
    test_unfinished_work_is_awaited();
    test_silent_process_is_not_awaited_forever();
    test_awaited_time_becomes_a_guess_when_others_start();
    test_processes_of_a_container_count_as_others();
    test_reused_slot_starts_from_zero();
    test_time_of_others_is_bounded();
    test_result_matches_a_simulated_device();
    return check_end();
}
