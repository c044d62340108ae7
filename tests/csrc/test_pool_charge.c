/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool_charge.c -- overlapping claims of pool growth, one step at a time: the ledger always
 * covers the memory that the driver holds.
 *
 * The driver is scripted: each test sets how much it holds at each step.
 */
#include "check.h"
#include "shim/cuda/memory/pool_charge.h"
#include "pool_charge_edge.h"

#include <errno.h>

static uint64_t held;
static uint64_t unused; /* of it, given back by a trim */
static int room;        /* whether the driver is certain to have free memory */
static int trims;
static int mute;                 /* it does not report what it holds */
static struct claim *in_between; /* settled by another thread during the query of the driver */

static int read_held(const struct pool_charge *growth, uint64_t *answer)
{
    struct claim *other = in_between;

    (void) growth;
    *answer = held;
    in_between = NULL;
    if (other) {
        held += other->worst;
        pool_charge_settle(other);
    }
    return !mute;
}

static int has_room(const struct pool_charge *growth, const struct claim *claim)
{
    (void) growth;
    (void) claim;
    return room;
}

static void trim(struct pool_charge *growth, uint64_t bytes)
{
    uint64_t given = bytes < unused ? bytes : unused;

    (void) growth;
    trims++;
    held -= given;
    unused -= given;
}

static int64_t noted; /* sum of note_held() calls */

static void note_held(struct pool_charge *growth, const struct claim *claim, int64_t more)
{
    (void) growth;
    (void) claim;
    noted += more;
}

static const struct pool_charge_source source = {read_held, has_room, trim, note_held};
static struct pool_charge growth;

static void begin(void)
{
    growth = (struct pool_charge) {.source = &source};
    pool_charge_register(&growth);
    held = unused = 0;
    room = mute = trims = 0;
    noted = 0;
}

static void end(void)
{
    mute = 0;
    held = 0;
    pool_charge_reread(0);
    CHECK_EQUAL("no user is left", growth.users, 0);
    CHECK_EQUAL("nothing is pending", growth.pending, 0);
    CHECK_EQUAL("nothing is relied on", growth.relied, 0);
    CHECK_EQUAL("no query is pending", growth.asking, 0);
    CHECK_EQUAL("held memory was reported", noted, 0);
    CHECK_EQUAL("nothing is charged", charged(), 0);
    pool_charges = NULL;
}

static struct claim claim_of(uint64_t bytes)
{
    return (struct claim) {.growth = &growth, .bytes = bytes, .worst = bytes};
}

static void single_claim_is_charged_its_growth(void)
{
    struct claim claim = claim_of(64 * MIB);

    begin();
    CHECK_EQUAL("reserved", pool_charge_reserve(&claim, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("the worst", charged(), 64 * MIB);
    held = 32 * MIB;
    CHECK_EQUAL("settled", pool_charge_settle(&claim), 0);
    CHECK_EQUAL("what it took", charged(), 32 * MIB);
    end();
}

static void concurrent_claim_does_not_refund_anothers_growth(void)
{
    struct claim first = claim_of(QUOTA - 32 * MIB);
    struct claim second = claim_of(32 * MIB);

    begin();
    pool_charge_reserve(&first, NULL);
    pool_charge_reserve(&second, NULL);
    held = QUOTA - 32 * MIB; /* the first has grown it, and is not back yet */
    CHECK_EQUAL("nothing is missing", pool_charge_settle(&second), 0);
    CHECK("the first covers it", charged() >= held);
    pool_charge_settle(&first);
    CHECK_EQUAL("in the end", charged(), held);
    end();
}

static void stale_driver_answer_is_ignored(void)
{
    struct claim first = claim_of(32 * MIB);
    struct claim second = claim_of(64 * MIB);

    begin();
    pool_charge_reserve(&first, NULL);
    pool_charge_reserve(&second, NULL);
    in_between = &second; /* grows, and settles, after the first has read and before it acts */
    pool_charge_settle(&first);
    CHECK_EQUAL("charged", charged(), 64 * MIB);
    end();
}

static void relied_on_room_stays_charged(void)
{
    struct claim filling = claim_of(QUOTA);
    struct claim relying = claim_of(128 * MIB);
    struct claim other = claim_of(32 * MIB);

    begin();
    pool_charge_reserve(&filling, NULL);
    held = QUOTA;
    pool_charge_settle(&filling);
    room = 1;
    CHECK_EQUAL("relied on", pool_charge_reserve(&relying, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("nothing more is charged", charged(), QUOTA);
    held -= 128 * MIB; /* a synchronisation made the driver release it */
    pool_charge_reread(0);
    CHECK_EQUAL("kept for the relying claim", charged(), QUOTA);
    CHECK_EQUAL("so another is refused", pool_charge_reserve(&other, NULL),
                CUDA_ERROR_OUT_OF_MEMORY);
    pool_charge_settle(&other);
    held += 128 * MIB;
    pool_charge_settle(&relying);
    CHECK_EQUAL("covered", charged(), QUOTA);
    end();
}

static void two_claims_do_not_rely_on_the_same_room(void)
{
    struct claim first = claim_of(32 * MIB);
    struct claim second = claim_of(32 * MIB);

    begin();
    room = 1;
    CHECK_EQUAL("the first", pool_charge_rely(&first), 0);
    CHECK_EQUAL("the second", pool_charge_rely(&second), -1);
    pool_charge_settle(&second);
    pool_charge_settle(&first);
    end();
}

static void claim_that_may_take_anothers_room_covers_the_need(void)
{
    struct claim relying = claim_of(128 * MIB);
    struct claim small = claim_of(32 * MIB);

    begin();
    room = 1;
    pool_charge_rely(&relying);
    CHECK_EQUAL("a small one", pool_charge_reserve(&small, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("both", charged(), 160 * MIB);
    pool_charge_settle(&small); /* it was served from the room, and the other has to grow */
    held = 128 * MIB;
    CHECK("covered", charged() >= held);
    pool_charge_settle(&relying);
    CHECK_EQUAL("in the end", charged(), 128 * MIB);
    end();
}

static void excess_growth_is_charged_or_refused(void)
{
    struct claim first = claim_of(32 * MIB);
    struct claim second = claim_of(32 * MIB);

    begin();
    pool_charge_reserve(&first, NULL);
    held = 96 * MIB;
    CHECK_EQUAL("it fits", pool_charge_settle(&first), 0);
    CHECK_EQUAL("charged", charged(), 96 * MIB);
    pool_charge_reserve(&second, NULL);
    held = QUOTA + 32 * MIB;
    CHECK_EQUAL("it does not", pool_charge_settle(&second), (uint64_t) -ENOMEM);
    CHECK("never beyond the quota", charged() <= QUOTA);
    end();
}

static void unreadable_pool_keeps_its_charge(void)
{
    struct claim claim = claim_of(64 * MIB);

    begin();
    mute = 1;
    pool_charge_reserve(&claim, NULL);
    pool_charge_settle(&claim);
    CHECK_EQUAL("charged", charged(), 64 * MIB);
    end();
}

static void trim_releases_only_the_shortfall(void)
{
    struct claim first = claim_of(QUOTA);
    struct claim second = claim_of(64 * MIB);
    struct claim third = claim_of(64 * MIB);

    begin();
    pool_charge_reserve(&first, NULL);
    held = QUOTA;
    pool_charge_settle(&first);
    unused = 128 * MIB;
    CHECK_EQUAL("reserved", pool_charge_reserve(&second, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("the rest stays", held, QUOTA - 64 * MIB);
    pool_charge_settle(&second); /* served from the rest */
    CHECK_EQUAL("again", pool_charge_reserve(&third, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("without a trim", trims, 1);
    pool_charge_settle(&third);
    end();
}

static void existing_room_is_used_before_a_trim(void)
{
    struct claim first = claim_of(QUOTA);
    struct claim second = claim_of(64 * MIB);

    begin();
    pool_charge_reserve(&first, NULL);
    held = QUOTA;
    pool_charge_settle(&first);
    unused = 128 * MIB;
    room = 1;
    CHECK_EQUAL("reserved", pool_charge_reserve(&second, NULL), CUDA_SUCCESS);
    CHECK_EQUAL("nothing is trimmed", trims, 0);
    pool_charge_settle(&second);
    end();
}

static CUresult is_not_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void) stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* All other entry points of the driver are NULL here: waiting would crash. */
static void refusal_does_not_wait_for_the_stream(void)
{
    struct claim claim = claim_of(QUOTA + 32 * MIB);

    begin();
    driver.cuStreamIsCapturing = is_not_capturing;
    CHECK_EQUAL("refused", pool_charge_reserve(&claim, &STREAM_LEGACY(NULL)),
                CUDA_ERROR_OUT_OF_MEMORY);
    pool_charge_settle(&claim);
    end();
}

static void charge_goes_to_the_source_of_the_memory(void)
{
    static struct pool_charge elsewhere;
    struct claim claim = claim_of(64 * MIB);

    begin();
    elsewhere = growth;
    pool_charge_register(&elsewhere);
    pool_charge_reserve(&claim, NULL);
    pool_charge_move(&claim, &elsewhere);
    CHECK_EQUAL("nothing here", growth.pending + growth.users, 0);
    held = 64 * MIB;
    pool_charge_settle(&claim);
    CHECK_EQUAL("settled there", elsewhere.settled, 64 * MIB);
    held = 0;
    pool_charge_reread_one(&elsewhere);
    end();
}

static void room_is_used_before_a_charge_when_quota_is_short(void)
{
    struct claim filling = claim_of(QUOTA - 32 * MIB);
    struct claim claims[4] = {claim_of(64 * MIB), claim_of(64 * MIB), claim_of(64 * MIB),
                              claim_of(64 * MIB)};

    begin();
    pool_charge_reserve(&filling, NULL);
    held = QUOTA - 32 * MIB;
    pool_charge_settle(&filling);
    room = 1;
    CHECK_EQUAL("it does not fit", pool_charge_reserve(&claims[0], NULL), CUDA_SUCCESS);
    pool_charge_settle(&claims[0]);
    held -= 64 * MIB;
    pool_charge_reread(0);
    CHECK_EQUAL("it would fit", pool_charge_reserve(&claims[1], NULL), CUDA_SUCCESS);
    CHECK_EQUAL("and is not charged", charged(), QUOTA - 96 * MIB);
    pool_charge_settle(&claims[1]);
    room = 0;
    CHECK_EQUAL("without room", pool_charge_reserve(&claims[2], NULL), CUDA_SUCCESS);
    CHECK_EQUAL("it is charged", charged(), QUOTA - 32 * MIB);
    pool_charge_settle(&claims[2]);
    room = 1;
    CHECK_EQUAL("once one fitted", pool_charge_reserve(&claims[3], NULL), CUDA_SUCCESS);
    CHECK_EQUAL("the next is charged", charged(), QUOTA - 32 * MIB);
    pool_charge_settle(&claims[3]);
    end();
}

int main(void)
{
    struct scratch scratch = edge_open();

    single_claim_is_charged_its_growth();
    concurrent_claim_does_not_refund_anothers_growth();
    stale_driver_answer_is_ignored();
    relied_on_room_stays_charged();
    two_claims_do_not_rely_on_the_same_room();
    claim_that_may_take_anothers_room_covers_the_need();
    excess_growth_is_charged_or_refused();
    unreadable_pool_keeps_its_charge();
    trim_releases_only_the_shortfall();
    existing_room_is_used_before_a_trim();
    room_is_used_before_a_charge_when_quota_is_short();
    refusal_does_not_wait_for_the_stream();
    charge_goes_to_the_source_of_the_memory();
    scratch_remove(&scratch);
    return check_end();
}
