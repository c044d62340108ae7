/* SPDX-License-Identifier: Apache-2.0 */
/* test_governor_streams.c -- the governor: random work of streams, purchases by threads. */
#include "check.h"
#include "core/compiler.h"
#include "governor_rows.h"

#include <pthread.h>

enum { STREAMS = 3, QUEUED = 4 };

/* A stream of a simulated device: its work in flight runs one after the other. */
struct lane {
    struct governor_piece pieces[QUEUED];
    int count;
    uint64_t end_ns;  /* on the axis */
    uint64_t free_ns; /* when all its work is done */
};

static struct lane lanes[STREAMS];
static uint64_t state; /* xorshift, the same in each run */
static int64_t any_ns; /* time in which any stream ran */

static int64_t draw(int64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t) (state % (uint64_t) below);
}

static void seed(uint64_t number)
{
    state = number * UINT64_C(0x9e3779b97f4a7c15);
    memset(lanes, 0, sizeof(lanes));
    any_ns = 0;
}

static void launch(struct lane *lane, int64_t expected_ns, int64_t took_ns, uint64_t now)
{
    uint64_t from = lane->free_ns > now ? lane->free_ns : now;

    lane->pieces[lane->count++] = (struct governor_piece) {from, now, from + (uint64_t) took_ns,
                                                           expected_ns, .joins = from > now};
    lane->free_ns = from + (uint64_t) took_ns;
}

static void note_running(uint64_t from, uint64_t until)
{
    uint64_t last = from;

    for (int i = 0; i < STREAMS; i++)
        if (lanes[i].free_ns > last)
            last = lanes[i].free_ns < until ? lanes[i].free_ns : until;
    any_ns += (int64_t) (last - from);
}

/* Finish completed work, and settle with the rest. */
static void inspect(uint64_t now)
{
    struct governor_flight flight = {.since_ns = now};

    for (int i = 0; i < STREAMS; i++) {
        struct lane *lane = &lanes[i];
        int done = 0;

        while (done < lane->count && lane->pieces[done].until_ns <= now)
            governor_finish(&governor, &lane->pieces[done++], &view, now);
        lane->count -= done;
        memmove(lane->pieces, lane->pieces + done, (size_t) lane->count * sizeof(*lane->pieces));
    }
    for (int i = 0; i < STREAMS; i++) {
        struct lane *lane = &lanes[i];
        int64_t ahead = 0;
        uint64_t place;

        for (int j = 0; j < lane->count; j++)
            ahead += lane->pieces[j].expected_ns;
        place = governor_place(&governor, 0, ahead);
        lane->end_ns = lane->end_ns < place ? lane->end_ns : place;
        if (!lane->count)
            continue;
        flight.running = 1;
        flight.ahead_ns += ahead;
        if (lane->pieces[0].from_ns < flight.since_ns)
            flight.since_ns = lane->pieces[0].from_ns;
        if (lane->end_ns > flight.end_ns)
            flight.end_ns = lane->end_ns;
    }
    governor_settle(&governor, &view, &flight, now);
}

/* Streams that always have more work, expected too long or too short, concurrently; all of them
 * check every 100 us. The device is theirs for their share of the time. */
static void share_of_streams(uint32_t percent, int streams)
{
    struct governor_share share = {.own = CLOCK_WHOLE / 100 * percent};
    const uint64_t time = 5000 * MS;
    int64_t due = (int64_t) time / 100 * percent;
    uint64_t now = start, until;
    int unpaid = 0, unequal = 0, behind = 0;

    share.limit = share.own;
    for (; now < start + time; now += (uint64_t) MS / 10) {
        note_running(now - (uint64_t) MS / 10, now);
        inspect(now);
        for (int i = 0; i < streams; i++) {
            int64_t took = 1 + draw(draw(4) ? MS / 4 : 4 * MS);
            int64_t expected = took * (1 + draw(16)) / 8 + 1;
            uint64_t end = governor_place(&governor, lanes[i].end_ns, expected);

            if (lanes[i].count == QUEUED ||
                !governor_buy(&governor, &share, end, expected, now, &until))
                continue;
            unpaid += governor.paid_ns < end;
            lanes[i].end_ns = end;
            launch(&lanes[i], expected, took, now);
        }
        unequal += shared.busy_ns != governor.paid_ns;
        behind += governor.paid_ns < governor.busy_ns;
    }
    CHECK_EQUAL("what begins is paid, or another stream's", unpaid, 0);
    CHECK_EQUAL("all that was paid is from the budget", unequal, 0);
    CHECK_EQUAL("nothing is done that is not paid", behind, 0);
    CHECK("not more than the share", any_ns <= due + due / 50 + 40 * MS);
    CHECK("nor less", any_ns >= due - due / 50 - 40 * MS);
    CHECK("no more is measured than any ran", (int64_t) governor.busy_ns <= any_ns + any_ns / 50);
    inspect(now + 100 * (uint64_t) MS);
    CHECK_EQUAL("in the end what was measured is charged", shared.busy_ns, governor.busy_ns);
}

static void test_random_streams_get_their_share(void)
{
    for (uint64_t number = 1; number <= 12; number++) {
        begin();
        seed(number);
        share_of_streams((uint32_t) (10 + 20 * (number % 4)), 1 + (int) (number % STREAMS));
    }
}

/* For any order of buy, pay, trust, finish and settle, alone or beside others: the budget is
 * charged what is paid, and once all work is done that equals the measured time. */
static void play(int beside)
{
    uint64_t now = row_start, until;
    int64_t trusted = 0;
    int unequal = 0, negative = 0;

    for (int i = 0; i < 4000; i++) {
        struct lane *lane = &lanes[draw(STREAMS)];
        int64_t took = 1 + draw(draw(4) ? MS / 4 : 20 * MS);
        int64_t expected = took * (1 + draw(32)) / 8 + 1;
        uint64_t end = governor_place(&governor, lane->end_ns, expected);

        now += (uint64_t) draw(draw(8) ? MS / 10 : 4 * MS);
        if (beside && !draw(20)) {
            read_clock(draw(3) ? start : now, now);
            view.sharers = 2;
        }
        if (!draw(500))
            view.valid = 0;
        switch (draw(8)) {
        case 0:
            if (!governor_buy(&governor, &half, end, expected, now, &until))
                break;
            governor_trust(&governor, expected);
            trusted += expected;
            break;
        case 1:
            if (!draw(100))
                governor_reset_overlap(&governor);
            break;
        case 2:
        case 3:
            inspect(now);
            break;
        default:
            if (lane->count == QUEUED)
                break;
            if (!governor_buy(&governor, &half, end, expected, now, &until)) {
                if (draw(10))
                    break;
                governor_pay(&governor, end, expected);
            }
            lane->end_ns = end;
            launch(lane, expected, took, now);
            lane->pieces[lane->count - 1].guessed = !draw(10);
            lane->pieces[lane->count - 1].crowded = !draw(4);
        }
        unequal += shared.busy_ns != governor.paid_ns;
        negative += (int64_t) governor.busy_ns < 0 || governor.paid_ns > UINT64_MAX / 2;
    }
    CHECK_EQUAL("the budget is charged what is paid", unequal, 0);
    CHECK_EQUAL("nothing is less than nothing", negative, 0);
    CHECK("no more is measured than time passed",
          (int64_t) governor.busy_ns - trusted <= (int64_t) (now - row_start) + BIN);
    inspect(now + 1000 * (uint64_t) MS);
    CHECK_EQUAL("in the end what was measured is charged", shared.busy_ns, governor.busy_ns);
    CHECK_EQUAL("and paid", governor.paid_ns, governor.busy_ns);
    CHECK_EQUAL("and all is finished", work.begun, work.finished);
    CHECK("which is something", governor.busy_ns > (uint64_t) (100 * MS));
}

static void test_charges_equal_measurements(void)
{
    for (uint64_t number = 1; number <= 40; number++) {
        begin();
        seed(number);
        play((int) number % 2);
    }
}

static void test_overlapping_streams_owe_time_while_no_other_container_has_work(void)
{
    const uint64_t now = start + 5000 * MS;
    static const struct {
        const char *sentence;
        int64_t budget, ago_ns; /* since streams last worked at the same time */
        int guesses, beside, spared, admitted;
        int64_t doubted_ns; /* before *now* */
        int unknown;
    } rows[] = {
        {"up to 25 ms", -24 * MS, 10 * MS, .admitted = 1},
        {"no more", -25 * MS, 10 * MS, .admitted = 0},
        {"its end was just read", -24 * MS, -MS, .admitted = 1},
        {"they work one by one since a second", -MS, 1001 * MS, .admitted = 0},
        {"a time of another boot", -MS, -1001 * MS, .admitted = 0},
        {"launches never measured", -15 * MS, 10 * MS, 100, .admitted = 0},
        {"make it less", -14 * MS, 10 * MS, 100, .admitted = 1},
        {"down to nothing", -1, 10 * MS, 160, .admitted = 0},
        {"others have work", -MS, 10 * MS, .beside = 1},
        {"others are idle", -24 * MS, 10 * MS, .beside = 1, .spared = 1, .admitted = 1},
        {"expectations were wrong", -MS, 10 * MS, .doubted_ns = 999 * MS},
        {"as another thread has just seen", -MS, 10 * MS, .doubted_ns = -MS},
        {"but not in the last second", -24 * MS, 10 * MS, .doubted_ns = 1001 * MS, .admitted = 1},
        {"it is not known yet how good they are", -MS, 10 * MS, .unknown = 1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct governor_share share = {
            .own = HALF, .limit = HALF, .beside = rows[i].beside, .spared = rows[i].spared};
        uint64_t until;

        begin();
        shared.refilled_ns = now;
        shared.budget_ns = rows[i].budget;
        shared.crowded_ns = now - (uint64_t) rows[i].ago_ns;
        shared.doubted_ns = rows[i].doubted_ns ? now - (uint64_t) rows[i].doubted_ns : 0;
        governor.guesses = rows[i].guesses;
        governor.overlap = rows[i].unknown ? 0 : CLOCK_WHOLE;
        CHECK_EQUAL(rows[i].sentence,
                    governor_buy(&governor, &share, 50 * MS, 50 * MS, now, &until),
                    rows[i].admitted);
    }
}

/* Whether *percent* of the device may begin more work while the budget is *budget*. */
static int owes(uint32_t percent, int64_t budget)
{
    struct governor_share share = {.own = CLOCK_WHOLE / 100 * percent};
    uint64_t until;

    begin();
    share.limit = share.own;
    shared.crowded_ns = start;
    shared.budget_ns = budget;
    governor.overlap = CLOCK_WHOLE;
    return governor_buy(&governor, &share, MS, MS, start, &until);
}

static void test_debts_keep_pauses_and_runs_short(void)
{
    CHECK("80 ms of a small share", owes(20, -15 * MS));
    CHECK("no more", !owes(20, -17 * MS));
    CHECK("50 ms of what a large one leaves", owes(75, -12 * MS));
    CHECK("no more", !owes(75, -13 * MS));
    CHECK("nothing where that is too little", !owes(10, -MS));
    CHECK("nor here", !owes(90, -MS));
    CHECK("nor with the whole device", !owes(100, -MS));
}

static void test_pieces_of_overlapping_streams_are_noted_for_all_processes(void)
{
    uint64_t until = start + 3 * (uint64_t) MS;
    struct governor_piece piece = {start, start, until, MS, .crowded = 1};

    taken((struct governor_piece) {start, start, start + (uint64_t) MS, MS, .joins = 1});
    CHECK_EQUAL("not if there is one", shared.crowded_ns, 0);
    taken(piece);
    CHECK_EQUAL("until then", shared.crowded_ns, until);
}

/* When expectations were last found wrong, after pieces of 3 ms that were expected to take so long.
 */
static uint64_t doubted_after(int64_t expected_ns, int pieces)
{
    uint64_t from = start;

    begin();
    for (int i = 0; i < pieces; i++, from += 3 * (uint64_t) MS)
        taken((struct governor_piece) {from, from, from + 3 * (uint64_t) MS, expected_ns,
                                       .joins = i > 0});
    return shared.doubted_ns;
}

static void test_expectations_are_doubted_if_work_takes_another_time(void)
{
    CHECK_EQUAL("as expected", doubted_after(3 * MS, 50), 0);
    CHECK_EQUAL("twice as long", doubted_after(3 * MS / 2, 50), 0);
    CHECK_EQUAL("half as long", doubted_after(6 * MS, 50), 0);
    CHECK("four times as long", doubted_after(3 * MS / 4, 50));
    CHECK("a fourth", doubted_after(12 * MS, 50));
    CHECK_EQUAL("a single piece shows little", doubted_after(3 * MS / 4, 1), 0);
}

enum { THREADS = 4, BUYS = 100000 };

static void *buy_often(void *unused)
{
    for (int64_t i = 1; i <= BUYS; i++)
        buy(i * 1000, 1000);
    return unused;
}

static void buy_with_threads(void)
{
    pthread_t threads[THREADS];

    shared.budget_ns = 1000 * MS;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, buy_often, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void test_concurrent_purchases_pay_once(void)
{
    buy_with_threads();
    CHECK_EQUAL("one by one", governor.paid_ns, THREADS * BUYS * 1000);
    CHECK_EQUAL("is charged once", shared.busy_ns, THREADS * BUYS * 1000);
    CHECK_EQUAL("from the budget", shared.budget_ns, 1000 * MS - INT64_C(1000) * THREADS * BUYS);
    begin();
    governor.overlap = CLOCK_WHOLE / THREADS / 2;
    buy_with_threads();
    CHECK_EQUAL("together", governor.paid_ns, BUYS * 1000);
    CHECK_EQUAL("is charged once", shared.busy_ns, BUYS * 1000);
    CHECK_EQUAL("and all is in flight", governor.ahead_ns, INT64_C(1000) * THREADS * BUYS);
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_random_streams_get_their_share,
        test_charges_equal_measurements,
        test_overlapping_streams_owe_time_while_no_other_container_has_work,
        test_debts_keep_pauses_and_runs_short,
        test_pieces_of_overlapping_streams_are_noted_for_all_processes,
        test_expectations_are_doubted_if_work_takes_another_time,
        test_concurrent_purchases_pay_once,
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        begin();
        tests[i]();
    }
    return check_end();
}
