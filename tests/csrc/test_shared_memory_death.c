/* SPDX-License-Identifier: Apache-2.0 */
/* test_shared_memory_death.c -- kill -9 at every instruction of operations on shared memory.
 *
 * A victim is stepped to its n-th instruction. While it is stopped there, the survivor does a
 * conflicting operation: it opens memory that the victim is releasing, or releases memory that the
 * victim is opening. Then the victim is killed, or runs to its end. Memory that any process has
 * open is charged at each of these points, the survivor never waits, and when all is closed nothing
 * is charged.
 *
 * Each scene is repeated with a descriptor, of which both have a copy: it carries the key, and the
 * process that has imported it, or is about to free, closes it.
 *
 * The longest sections are sampled: several runs together hit every instruction (victim.h).
 */
#include "check.h"
#include "core/ledger.h"
#include "core/shared_memory.h"
#include "scratch_region.h"
#include "victim.h"

#include <sys/mman.h>

#define BYTES (UINT64_C(10) << 20)

static struct scratch scratch;
static struct region region;
static struct ledger ledger = {.region = &region, .generation = 1, .limit = {100 * BYTES}};
static uint64_t key;
static int carried;
static int descriptor = -1; /* carries the key */
static unsigned seed;

static struct {
    link_t link;
    int paid;
} *victims; /* the victim's results, in memory shared with the survivor */

static struct {
    link_t export;
    link_t import;
    int paid;
    int freed;
    int given_up;
} own; /* the survivor's state */

static void join(void)
{
    struct region_reason reason;

    if (scratch_open(&scratch, &region, &reason) || slots_claim(&region, 0, &reason)) {
        fprintf(stderr, "%s\n", reason.text);
        _exit(2);
    }
}

static link_t export_it_carried(void)
{
    link_t link = shared_memory_export(&region, key, 0, BYTES);

    if (carried && !shared_memory_carry(&region, key, descriptor))
        _exit(2);
    return link;
}

static void close_descriptor(void)
{
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
}

static link_t open_shared(int *paid)
{
    struct shared_memory_match match = {.key = key};
    link_t link;

    *paid = 0;
    if (carried && !shared_memory_match(&region, descriptor, &match))
        return 0;
    link = shared_memory_import(&region, match.key, paid);
    close_descriptor();
    return link;
}

static link_t export_charged(void)
{
    if (ledger_charge(&ledger, 0, BYTES) != 0)
        _exit(2);
    return export_it_carried();
}

static void collect(void)
{
    ledger_refund(&ledger, 0, shared_memory_collect(&region, 0, 0));
}

/* The victim's part: first the preparation, then the section that it is stepped through. */

static void prepare_charge(void)
{
    join();
    if (ledger_charge(&ledger, 0, BYTES) != 0)
        _exit(2);
}

static void export(void)
{
    victims->link = export_it_carried();
}

static void prepare_export(void)
{
    join();
    victims->link = export_charged();
}

static void end_export(void)
{
    close_descriptor();
    if (shared_memory_end_export(&region, victims->link))
        ledger_refund(&ledger, 0, BYTES);
}

static void import(void)
{
    victims->link = open_shared(&victims->paid);
}

static void prepare_import(void)
{
    join();
    import();
}

static void end_import(void)
{
    shared_memory_end_import(&region, victims->link);
}

static void prepare_freed(void)
{
    link_t held;
    int paid;

    prepare_export();
    held = shared_memory_import(&region, key, &paid);
    end_export();
    shared_memory_end_import(&region, held);
}

static void prepare_reap(void)
{
    join();
    close_descriptor();
}

static void reap(void)
{
    slots_reap(&region);
}

/* The survivor's part: its preparation, and its operation while the victim is stopped. */

static void nothing(void)
{
}

static void open_it(void)
{
    own.import = open_shared(&own.paid);
}

/* Export the opened memory again, and then keep it only in that descriptor. */
static void hand_it_on(void)
{
    if (!carried)
        return;
    descriptor = scratch_descriptor(&scratch);
    CHECK("it is an export still", shared_memory_carry(&region, key, descriptor));
    shared_memory_end_import(&region, own.import);
    own.import = 0;
}

static void export_it(void)
{
    own.export = export_charged();
}

static void free_it(void)
{
    own.freed = 1;
    close_descriptor();
    own.given_up = shared_memory_end_export(&region, own.export);
    if (own.given_up)
        ledger_refund(&ledger, 0, BYTES);
}

static void export_and_free_it(void)
{
    export_it();
    free_it();
    CHECK("the victim has it open", !own.given_up);
}

/* A third process exports and dies; *opened*: when the survivor has opened it. */
static void leave_an_orphan(int opened)
{
    struct victim owner = {.pid = fork()};

    if (owner.pid == 0) {
        victim_is_traced();
        prepare_export();
        victim_stops();
    }
    CHECK("there is an owner", victim_stands(&owner));
    if (opened)
        open_it();
    victim_kill(&owner);
    region.usage->scanned_ns = 0; /* make the victim reap dead processes */
}

static void leave_an_open_orphan(void)
{
    leave_an_orphan(1);
}

static void leave_a_closed_orphan(void)
{
    leave_an_orphan(0);
}

static const struct scene {
    const char *name;
    void (*prepare)(void);
    void (*arrange)(void);
    void (*section)(void);
    void (*meddle)(void);
    unsigned stride[2]; /* without and with a descriptor; mostly library code is sampled */
} scenes[] = {
    {"export", prepare_charge, nothing, export, open_it, {1, 7}},
    {"end of an export, opened meanwhile", prepare_export, nothing, end_export, open_it, {1, 1}},
    {"end of an export, open", prepare_export, open_it, end_export, nothing, {1, 1}},
    {"end of an export, handed on", prepare_export, open_it, end_export, hand_it_on, {1, 1}},
    {"import, freed meanwhile", join, export_it, import, free_it, {1, 1}},
    {"import of what is freed", join, export_it, import, nothing, {1, 1}},
    {"end of an import", prepare_import, export_and_free_it, end_import, collect, {1, 1}},
    {"collect, opened meanwhile", prepare_freed, nothing, collect, open_it, {1, 1}},
    {"reap of an open orphan", prepare_reap, leave_an_open_orphan, reap, nothing, {7, 7}},
    {"reap of a closed orphan, opened", prepare_reap, leave_a_closed_orphan, reap, open_it, {7, 7}},
};

static uint64_t used(void)
{
    region.usage->scanned_ns = 0;
    return ledger_used(&ledger, 0);
}

static int not_charged_but_open;
static int not_returned;
static int paid_and_given_up;

static void inspect(void)
{
    if (own.paid) /* twice: a second reap must give the same result */
        not_charged_but_open += used() < BYTES || used() < BYTES;
}

static void close_everything(void)
{
    shared_memory_end_import(&region, own.import);
    close_descriptor();
    used();
    if (own.export && !own.freed)
        free_it();
    collect();
    not_returned += used() != 0;
    for (unsigned place = 0; place < region.usage->link_end; place++)
        not_returned += region.links[place].word != 0;
}

/* Play a scene with the victim stopped at its *steps*-th instruction; 0 once it is through. */
static int play(const struct scene *scene, unsigned steps, int finish)
{
    struct victim victim;
    int alive;

    memset(&own, 0, sizeof(own));
    memset(victims, 0, sizeof(*victims));
    if (carried) {
        key = shared_memory_new_key(&region);
        descriptor = scratch_descriptor(&scratch);
    }
    victim.pid = fork();
    if (victim.pid == 0) {
        victim_is_traced();
        scene->prepare();
        victim_stops();
        scene->section();
        victim_stops();
    }
    CHECK("the victim stands", victim_stands(&victim));
    scene->arrange();
    alive = victim_step(&victim, steps);
    scene->meddle();
    inspect();
    if (alive && finish) {
        victim_finish(&victim);
        paid_and_given_up += own.given_up && victims->paid;
        inspect();
    }
    victim_kill(&victim);
    inspect();
    close_everything();
    return alive;
}

static void play_everywhere(const struct scene *scene, int finish)
{
    unsigned stride = scene->stride[carried] * check_one_of();
    unsigned first = seed % stride;
    unsigned steps = first;

    while (play(scene, steps, finish) && steps < 20000)
        steps += stride;
    printf("%s%s: %s at instructions %u to %u by %u\n", scene->name, carried ? " (descriptor)" : "",
           finish ? "stopped" : "killed", first, steps, stride);
    CHECK("the section has instructions", steps > 2);
    CHECK_EQUAL("open, but not charged", not_charged_but_open, 0);
    CHECK_EQUAL("closed, but charged", not_returned, 0);
    CHECK_EQUAL("both given up and paid by its owner", paid_and_given_up, 0);
}

int main(void)
{
    stay_on_one_processor();
    seed = sample_seed();
    scratch = scratch_make(0);
    key = shared_memory_key("shared", 6);
    victims =
        mmap(NULL, sizeof(*victims), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    join();
    for (carried = 0; carried < 2; carried++)
        for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
            for (int finish = 0; finish < 2; finish++)
                play_everywhere(&scenes[i], finish);
    CHECK("slots are used again", region.usage->high_water <= 4);
    slots_release(&region);
    scratch_remove(&scratch);
    return check_end();
}
