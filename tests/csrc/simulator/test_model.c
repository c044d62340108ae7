/* SPDX-License-Identifier: Apache-2.0 */
/* test_model.c -- the device's time model, under a virtual clock: every figure here is exact. */
#include "model.h"

#include <stdlib.h>

#include "check.h"

#define MS UINT64_C(1000000)

enum { LANES = 4, SMS = 100, ORDERED = 1, UNORDERED = MODEL_FIRST_UNORDERED };

static struct model_device device;
static struct model_lane lanes[LANES];

static struct model_lane *find_lane(void *context, uint32_t lane)
{
    (void) context;
    return &lanes[lane];
}

static struct model model = {&device, find_lane, NULL, {MS, 0}};
static uint32_t next_place[LANES];

static void begin(void)
{
    memset(&device, 0, sizeof(device));
    memset(lanes, 0, sizeof(lanes));
    memset(next_place, 0, sizeof(next_place));
    device.units = SMS;
    model.law = (struct model_law) {MS, 0};
}

static uint64_t enqueue(uint32_t lane, const struct model_work *work)
{
    return model_enqueue(&model, lane, next_place[lane]++, work);
}

static uint64_t submit(uint32_t lane, uint8_t queue, uint8_t engine, uint64_t ns, uint32_t units)
{
    struct model_work work = {
        .submitted = device.now, .remaining = ns, .units = units, .engine = engine, .queue = queue};

    return enqueue(lane, &work);
}

static void advance(uint64_t now)
{
    while (!model_advance(&model, now))
        continue;
}

static uint64_t finished(uint32_t lane, uint64_t ticket)
{
    return model_work_of(&lanes[lane], ticket)->finished;
}

static void queue_is_in_order(void)
{
    uint64_t first, second, mark;

    begin();
    first = submit(0, ORDERED, ENGINE_SM, 3 * MS, 1);
    second = submit(0, ORDERED, ENGINE_SM, 2 * MS, 1);
    mark = submit(0, ORDERED, ENGINE_NONE, 0, 0);
    advance(3 * MS - 1);
    CHECK("nothing is done before its time", !model_is_done(&lanes[0], first));
    CHECK_EQUAL("the next event is foreseen", device.next_event, 3 * MS);
    CHECK_EQUAL("so is the end", model_earliest(&model, 0, second), 5 * MS);
    advance(10 * MS);
    CHECK_EQUAL("the first is done after its time", finished(0, first), 3 * MS);
    CHECK_EQUAL("the second after both", finished(0, second), 5 * MS);
    CHECK_EQUAL("a mark has the time of what is before it", finished(0, mark), 5 * MS);
    CHECK_EQUAL("busy is what ran", device.busy_ns, 5 * MS);
    CHECK_EQUAL("no lane has work", model_active(&device), 0);
}

static void kernels_overlap_as_sms_allow(void)
{
    uint64_t a, b, c;

    begin();
    a = submit(0, ORDERED, ENGINE_SM, 4 * MS, 60);
    b = submit(0, ORDERED + 1, ENGINE_SM, 4 * MS, 40);
    c = submit(0, ORDERED + 2, ENGINE_SM, 4 * MS, 10);
    advance(20 * MS);
    CHECK_EQUAL("two that fit run together", finished(0, a), 4 * MS);
    CHECK_EQUAL("two that fit run together", finished(0, b), 4 * MS);
    CHECK_EQUAL("the third waits for room", finished(0, c), 8 * MS);
    begin();
    a = submit(0, ORDERED, ENGINE_SM, 2 * MS, 100000);
    advance(20 * MS);
    CHECK_EQUAL("a grid larger than the device runs", finished(0, a), 2 * MS);
}

static void copies_run_beside_kernels(void)
{
    uint64_t kernel, in, out, in_again;

    begin();
    kernel = submit(0, UNORDERED, ENGINE_SM, 5 * MS, SMS);
    in = submit(0, UNORDERED + 1, ENGINE_HOST_TO_DEVICE, 5 * MS, 0);
    out = submit(0, UNORDERED + 2, ENGINE_DEVICE_TO_HOST, 5 * MS, 0);
    in_again = submit(0, UNORDERED + 3, ENGINE_HOST_TO_DEVICE, 5 * MS, 0);
    advance(20 * MS);
    CHECK_EQUAL("the kernel", finished(0, kernel), 5 * MS);
    CHECK_EQUAL("a copy beside it", finished(0, in), 5 * MS);
    CHECK_EQUAL("the other direction too", finished(0, out), 5 * MS);
    CHECK_EQUAL("one copy at a time in a direction", finished(0, in_again), 10 * MS);
    CHECK_EQUAL("the SMs were busy for the kernel", lanes[0].busy_ns, 5 * MS);
    CHECK_EQUAL("the device was used as long as anything ran", lanes[0].used_ns, 10 * MS);
    submit(0, UNORDERED + 1, ENGINE_HOST_TO_DEVICE, 2 * MS, 0);
    submit(2, UNORDERED, ENGINE_SM, 3 * MS, SMS);
    advance(30 * MS);
    CHECK_EQUAL("by each lane for itself", lanes[0].used_ns, 12 * MS);
    CHECK_EQUAL("by each lane for itself", lanes[2].used_ns, 3 * MS);
}

static void lanes_are_time_sliced(void)
{
    uint64_t a, b, late;

    begin();
    a = submit(0, ORDERED, ENGINE_SM, 10 * MS, 1);
    b = submit(2, ORDERED, ENGINE_SM, 10 * MS, 1);
    advance(10 * MS);
    CHECK_EQUAL("half of the time each", lanes[0].busy_ns, 5 * MS);
    CHECK_EQUAL("half of the time each", lanes[2].busy_ns, 5 * MS);
    late = submit(1, ORDERED, ENGINE_SM, 2 * MS, 1);
    advance(100 * MS);
    CHECK_EQUAL("three lanes from then on", finished(1, late) <= 16 * MS, 1);
    CHECK_EQUAL("the last to end ends when all the work is done",
                finished(0, a) > finished(2, b) ? finished(0, a) : finished(2, b), 22 * MS);
    CHECK_EQUAL("no time was lost", device.busy_ns, 22 * MS);
    begin();
    a = submit(0, ORDERED, ENGINE_SM, 7 * MS, 1);
    advance(7 * MS);
    CHECK_EQUAL("alone, it is never interrupted", finished(0, a), 7 * MS);
}

static void shares_are_equal_for_any_kernel_lengths(void)
{
    begin();
    for (int i = 0; i < 1000; i++)
        submit(0, ORDERED, ENGINE_SM, 10000, 1); /* 10 us each */
    submit(1, ORDERED, ENGINE_SM, 10 * MS, SMS);
    advance(10 * MS);
    CHECK_EQUAL("short kernels get half", lanes[0].busy_ns, 5 * MS);
    CHECK_EQUAL("the long one the other half", lanes[1].busy_ns, 5 * MS);
}

static void legacy_queue_is_a_barrier(void)
{
    uint64_t before, legacy, after, apart;

    begin();
    before = submit(0, ORDERED, ENGINE_SM, 2 * MS, 1);
    legacy = submit(0, 0, ENGINE_SM, 2 * MS, 1);
    after = submit(0, ORDERED + 1, ENGINE_SM, 2 * MS, 1);
    apart = submit(0, UNORDERED, ENGINE_SM, 2 * MS, 1);
    advance(20 * MS);
    CHECK_EQUAL("what was submitted before it", finished(0, before), 2 * MS);
    CHECK_EQUAL("it waits for that", finished(0, legacy), 4 * MS);
    CHECK_EQUAL("what comes later waits for it", finished(0, after), 6 * MS);
    CHECK_EQUAL("a non-blocking stream does not wait", finished(0, apart), 2 * MS);
}

static void waits_and_gates(void)
{
    struct model_work waiter = {.engine = ENGINE_NONE, .queue = UNORDERED + 1};
    uint64_t work, wait, behind, gate, last;

    begin();
    work = submit(0, UNORDERED, ENGINE_SM, 3 * MS, 1);
    waiter.after = work;
    wait = enqueue(0, &waiter);
    behind = submit(0, UNORDERED + 1, ENGINE_SM, MS, 1);
    gate = submit(0, UNORDERED, ENGINE_GATE, 0, 0);
    last = submit(0, UNORDERED, ENGINE_SM, MS, 1);
    advance(10 * MS);
    CHECK_EQUAL("a wait ends with what it waits for", finished(0, wait), 3 * MS);
    CHECK_EQUAL("and its queue goes on", finished(0, behind), 4 * MS);
    CHECK_EQUAL("a gate is come to", model_work_of(&lanes[0], gate)->state, WORK_AT_GATE);
    CHECK_EQUAL("and known since when", finished(0, gate), 3 * MS);
    CHECK("nothing passes it", !model_is_done(&lanes[0], last));
    model_open_gate(&model, 0, gate, 10 * MS);
    advance(20 * MS);
    CHECK_EQUAL("opened, its queue goes on", finished(0, last), 11 * MS);
}

static void later_work_does_not_start_early(void)
{
    struct model_work later = {
        .submitted = 5 * MS, .remaining = MS, .units = 1, .engine = ENGINE_SM, .queue = ORDERED};
    uint64_t ticket;

    begin();
    ticket = enqueue(0, &later);
    advance(20 * MS);
    CHECK_EQUAL("it starts when it was submitted", finished(0, ticket), 6 * MS);
}

/* A queue that waits keeps no place but its own: the places of others are freed. */
static void places_are_freed_in_any_order(void)
{
    uint64_t gate, last = 0;
    uint32_t place;

    begin();
    gate = submit(0, UNORDERED, ENGINE_GATE, 0, 0);
    for (uint64_t i = 0; i < 2 * MODEL_PLACES; i++) {
        struct model_work work = {.submitted = device.now,
                                  .remaining = 1000,
                                  .units = 1,
                                  .engine = ENGINE_SM,
                                  .queue = UNORDERED + 1};

        last = model_enqueue(&model, 0, 1, &work);
        advance(device.now + 1000);
        CHECK("it is done", model_is_done(&lanes[0], last));
        CHECK("its place is free", model_take_done(&lanes[0], &place) && place == 1);
        CHECK("nothing else is", !model_take_done(&lanes[0], &place));
    }
    CHECK("the gate is closed", !model_is_done(&lanes[0], gate));
    CHECK_EQUAL("all of it ran", lanes[0].busy_ns, 2 * MODEL_PLACES * UINT64_C(1000));
    model_open_gate(&model, 0, gate, device.now);
    CHECK("the gate's place is free", model_take_done(&lanes[0], &place) && place == 0);
}

static void done_work_is_found_in_any_place(void)
{
    static const uint32_t places[] = {0, 63, 64, 4095, 4096, MODEL_PLACES - 1};
    const unsigned count = sizeof(places) / sizeof(places[0]);
    struct model_work work = {.engine = ENGINE_NONE, .queue = ORDERED};
    uint32_t place;

    begin();
    for (unsigned i = 0; i < count; i++)
        model_enqueue(&model, 0, places[i], &work);
    CHECK("nothing before its time", !model_take_done(&lanes[0], &place));
    advance(1);
    for (unsigned i = 0; i < count; i++)
        CHECK("each is found", model_take_done(&lanes[0], &place) && place == places[i]);
    CHECK("each only once", !model_take_done(&lanes[0], &place));
}

static void switch_costs_what_the_law_says(void)
{
    uint64_t a, b;

    begin();
    model.law = (struct model_law) {2 * MS, MS / 2};
    a = submit(0, ORDERED, ENGINE_SM, 4 * MS, 1);
    b = submit(1, ORDERED, ENGINE_SM, 4 * MS, 1);
    advance(100 * MS);
    /* Slices of 2 ms, lane 1 first, and a switch before each. */
    CHECK_EQUAL("the second", finished(1, b), 7 * MS + MS / 2);
    CHECK_EQUAL("the first", finished(0, a), 10 * MS);
    CHECK_EQUAL("switches are no work", device.busy_ns, 8 * MS);
    begin();
    model.law = (struct model_law) {2 * MS, MS / 2};
    a = submit(0, ORDERED, ENGINE_SM, 9 * MS, 1);
    advance(100 * MS);
    CHECK_EQUAL("alone there is none", finished(0, a), 9 * MS);
}

static void mark_takes_time_and_no_engine(void)
{
    uint64_t mark, behind, beside;

    begin();
    mark = submit(0, ORDERED, ENGINE_NONE, 3000, 0);
    behind = submit(0, ORDERED, ENGINE_SM, 10000, SMS);
    beside = submit(0, ORDERED + 1, ENGINE_SM, 2000, SMS);
    advance(MS);
    CHECK_EQUAL("the mark", finished(0, mark), 3000);
    CHECK_EQUAL("what is behind it waits", finished(0, behind), 13000);
    CHECK_EQUAL("others do not", finished(0, beside), 2000);
    CHECK_EQUAL("it is no work", device.busy_ns, 12000);
}

static void event_in_turn_waits_for_other_turns_and_takes_no_sm(void)
{
    uint64_t event, beside;

    begin();
    submit(1, ORDERED, ENGINE_SM, 10 * MS, SMS);
    advance(MS / 2);
    event = submit(0, ORDERED, ENGINE_SM, 1000, 0);
    beside = submit(0, ORDERED + 1, ENGINE_SM, 2000, SMS);
    advance(20 * MS);
    CHECK_EQUAL("the event", finished(0, event), MS + 1000);
    CHECK_EQUAL("a kernel beside it has all SMs", finished(0, beside), MS + 2000);
    CHECK_EQUAL("it is no work", device.busy_ns, 10 * MS + 2000);
    begin();
    event = submit(0, ORDERED, ENGINE_SM, 1000, 0);
    advance(MS);
    CHECK_EQUAL("alone it is passed at once", finished(0, event), 1000);
    CHECK_EQUAL("and is no work", device.busy_ns, 0);
}

static void streams_of_higher_priority_run_first(void)
{
    struct model_work urgent = {
        .remaining = MS, .units = SMS, .engine = ENGINE_SM, .queue = ORDERED + 2, .priority = 5};
    uint64_t running, waiting, first;

    begin();
    running = submit(0, ORDERED, ENGINE_SM, 2 * MS, SMS);
    waiting = submit(0, ORDERED + 1, ENGINE_SM, MS, SMS);
    advance(MS);
    urgent.submitted = device.now;
    first = enqueue(0, &urgent);
    advance(10 * MS);
    CHECK_EQUAL("it is done at once", finished(0, first), 2 * MS);
    CHECK_EQUAL("then what ran before", finished(0, running), 3 * MS);
    CHECK_EQUAL("then what waited", finished(0, waiting), 4 * MS);
}

static void dead_lane_takes_no_turns(void)
{
    uint64_t a;

    begin();
    a = submit(0, ORDERED, ENGINE_SM, 10 * MS, 1);
    submit(1, ORDERED, ENGINE_SM, 1000 * MS, 1);
    advance(4 * MS);
    model_reset_lane(&model, 1);
    advance(100 * MS);
    CHECK_EQUAL("the other goes on alone", finished(0, a), 12 * MS);
    CHECK_EQUAL("no lane has work", model_active(&device), 0);
}

/* A process may be killed between any two stores of an advance: the next one redoes the rest. */
static void half_done_changes_are_repaired(void)
{
    uint64_t first, second;

    begin();
    first = submit(0, ORDERED, ENGINE_SM, MS, 1);
    second = submit(0, ORDERED, ENGINE_SM, MS, 1);
    /* The process marked the work as done, and was killed before removing it from the queue. */
    model_work_of(&lanes[0], first)->finished = MS;
    model_work_of(&lanes[0], first)->state = WORK_DONE;
    device.now = MS;
    advance(10 * MS);
    CHECK_EQUAL("the next one runs", finished(0, second), 2 * MS);
    begin();
    submit(0, ORDERED, ENGINE_SM, MS, 1);
    second = submit(0, ORDERED, ENGINE_SM, MS, 1);
    lanes[0].places[0].state = WORK_DONE;
    next_place[0] = 0; /* the owner reuses its place first */
    submit(0, ORDERED + 1, ENGINE_SM, MS, SMS);
    advance(10 * MS);
    CHECK("the queue does not lead to what was there", model_is_done(&lanes[0], second));
}

/* Advancing often or seldom makes no difference. */
static void frequent_advances_change_nothing(void)
{
    uint64_t seldom[LANES], often[LANES];

    for (int round = 0; round < 2; round++) {
        uint64_t *ends = round ? often : seldom;
        begin();
        for (uint32_t lane = 0; lane < LANES; lane++) {
            ends[lane] = 0;
            for (int i = 0; i < 20; i++)
                ends[lane] = submit(lane, (uint8_t) (ORDERED + i % 3), ENGINE_SM,
                                    100000 + lane * 77777, 30 + lane * 10);
        }
        for (uint64_t t = 0; t < 100 * MS; t += round ? 12345 : 100 * MS)
            advance(t);
        advance(100 * MS);
        for (uint32_t lane = 0; lane < LANES; lane++)
            ends[lane] = finished(lane, ends[lane]);
    }
    CHECK("the same ends", !memcmp(seldom, often, sizeof(seldom)));
}

static void a_group_runs_together(void)
{
    uint64_t a, b, other;

    begin();
    model_join(&model, 0, 3, 0);
    model_join(&model, 1, 3, 0);
    a = submit(0, ORDERED, ENGINE_SM, 4 * MS, 60);
    b = submit(1, ORDERED, ENGINE_SM, 4 * MS, 40);
    advance(20 * MS);
    CHECK_EQUAL("kernels of two lanes that fit run together", finished(0, a), 4 * MS);
    CHECK_EQUAL("kernels of two lanes that fit run together", finished(1, b), 4 * MS);
    CHECK_EQUAL("the device was busy once", device.busy_ns, 4 * MS);
    CHECK_EQUAL("so was the leader", lanes[3].busy_ns, 4 * MS);
    CHECK_EQUAL("each member has its time", lanes[0].busy_ns + lanes[1].busy_ns, 8 * MS);
    CHECK_EQUAL("the load is the leader's", lanes[3].history[0].sm_ns, 4 * MS);
    CHECK_EQUAL("and no member's", lanes[0].history[0].sm_ns, 0);
    begin();
    model_join(&model, 0, 3, 0);
    model_join(&model, 1, 3, 0);
    a = submit(0, ORDERED, ENGINE_SM, 4 * MS, 1);
    b = submit(1, ORDERED, ENGINE_SM, 4 * MS, 1);
    other = submit(2, ORDERED, ENGINE_SM, 4 * MS, 1);
    advance(20 * MS);
    CHECK_EQUAL("a lane outside has half of the time", finished(2, other), 7 * MS);
    CHECK_EQUAL("the group the other half", finished(0, a), 8 * MS);
    CHECK_EQUAL("for both of its lanes", finished(1, b), 8 * MS);
}

static void a_kernel_of_a_group_takes_what_is_left(void)
{
    uint64_t a, b, c;

    begin();
    model_join(&model, 0, 3, 0);
    model_join(&model, 1, 3, 0);
    a = submit(0, ORDERED, ENGINE_SM, 4 * MS, 75);
    b = submit(1, ORDERED, ENGINE_SM, 4 * MS, 50);
    advance(20 * MS);
    CHECK_EQUAL("the first has all that it wants", finished(0, a), 4 * MS);
    CHECK_EQUAL("the second half of that until then", finished(1, b), 6 * MS);
    begin();
    model_join(&model, 0, 3, 25);
    a = submit(0, ORDERED, ENGINE_SM, 2 * MS, SMS);
    b = submit(0, ORDERED + 1, ENGINE_SM, 2 * MS, 25);
    advance(20 * MS);
    CHECK_EQUAL("a quarter of the SMs takes four times as long", finished(0, a), 8 * MS);
    CHECK_EQUAL("the limit is for all kernels of the lane", finished(0, b), 10 * MS);
    begin();
    model_join(&model, 0, 3, 0);
    model_join(&model, 1, 3, 0);
    a = submit(0, ORDERED, ENGINE_SM, 2 * MS, SMS);
    b = submit(0, ORDERED, ENGINE_SM, 2 * MS, SMS);
    c = submit(1, ORDERED, ENGINE_SM, 2 * MS, SMS);
    advance(20 * MS);
    CHECK_EQUAL("lanes of a group alternate", finished(0, a), 2 * MS);
    CHECK_EQUAL("lanes of a group alternate", finished(1, c), 4 * MS);
    CHECK_EQUAL("lanes of a group alternate", finished(0, b), 6 * MS);
}

static void a_lane_leaves_its_group_at_its_end(void)
{
    begin();
    model_join(&model, 0, 3, 25);
    model_reset_lane(&model, 0);
    CHECK_EQUAL("no group", lanes[0].group, 0);
    CHECK_EQUAL("no limit", lanes[0].limit, 0);
}

int main(void)
{
    queue_is_in_order();
    a_group_runs_together();
    a_kernel_of_a_group_takes_what_is_left();
    a_lane_leaves_its_group_at_its_end();
    kernels_overlap_as_sms_allow();
    copies_run_beside_kernels();
    lanes_are_time_sliced();
    shares_are_equal_for_any_kernel_lengths();
    legacy_queue_is_a_barrier();
    waits_and_gates();
    later_work_does_not_start_early();
    places_are_freed_in_any_order();
    done_work_is_found_in_any_place();
    switch_costs_what_the_law_says();
    mark_takes_time_and_no_engine();
    event_in_turn_waits_for_other_turns_and_takes_no_sm();
    streams_of_higher_priority_run_first();
    dead_lane_takes_no_turns();
    half_done_changes_are_repaired();
    frequent_advances_change_nothing();
    return check_end();
}
