/* SPDX-License-Identifier: Apache-2.0 */
/* test_shared_memory.c -- shared memory stays charged while any process has it open, whichever one
 * dies. */
#include "shared_memory_room.h"

#include <errno.h>

static void import_is_paid_while_its_key_is_exported(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct answer made;
    link_t import;
    link_t again;
    int paid;

    join(&scratch);
    owner = start_peer(&scratch);
    CHECK("a place", shared_memory_import(&region, 77, &paid) != 0);
    CHECK("no process exports it", !paid);
    made = tell(&owner, (struct order) {EXPORT, shared_memory_key("a", 1), 2 * MIB, 0});
    CHECK("exported", made.link != 0);
    import = shared_memory_import(&region, shared_memory_key("b", 1), &paid);
    CHECK("another key", import && !paid);
    shared_memory_end_import(&region, import);
    import = shared_memory_import(&region, shared_memory_key("a", 1), &paid);
    CHECK("paid by its owner", import && paid);
    CHECK("its free is not the end of it",
          !tell(&owner, (struct order) {END_EXPORT, 0, 2 * MIB, made.link}).said);
    CHECK_EQUAL("it stays charged", used(), 2 * MIB);
    CHECK_EQUAL("nothing to collect yet", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    again = shared_memory_import(&region, shared_memory_key("a", 1), &paid);
    CHECK("opening it again is not charged", again && paid);
    shared_memory_end_import(&region, import);
    CHECK_EQUAL("the other still has it", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    shared_memory_end_import(&region, again);
    CHECK_EQUAL("the last has closed it", tell(&owner, (struct order) {.what = COLLECT}).bytes,
                2 * MIB);
    CHECK_EQUAL("once", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    CHECK_EQUAL("nothing is charged", used(), 0);
    kill_peer(&owner);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void unopened_export_ends_with_its_free(void)
{
    struct scratch scratch = scratch_make(0);
    link_t link;
    link_t import;
    int paid;

    join(&scratch);
    link = shared_memory_export(&region, 5 << LINK_HASH_SHIFT, 0, MIB);
    CHECK("given up", shared_memory_end_export(&region, link));
    CHECK_EQUAL("its place is used again",
                shared_memory_export(&region, 5 << LINK_HASH_SHIFT, 1, MIB), link);
    import = shared_memory_import(&region, 5 << LINK_HASH_SHIFT, &paid);
    CHECK("a process may import its own", import && paid);
    CHECK("and then holds it", !shared_memory_end_export(&region, link));
    shared_memory_end_import(&region, import);
    CHECK_EQUAL("on its own device", shared_memory_collect(&region, 0, 0), 0);
    CHECK_EQUAL("alone", shared_memory_collect(&region, 1, 0), MIB);
    link = shared_memory_export(&region, 6 << LINK_HASH_SHIFT, 0, MIB);
    shared_memory_cancel_export(&region, link);
    shared_memory_import(&region, 6 << LINK_HASH_SHIFT, &paid);
    CHECK("an export that failed matches nothing", !paid);
    slots_release(&region);
    CHECK_EQUAL("nothing is left of it", region.links[0].word | region.links[1].word, 0);
    scratch_remove(&scratch);
}

static void dead_owner_is_charged_until_the_last_import_ends(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct peer importer;
    struct answer opened;
    struct answer first;
    int slot;

    join(&scratch);
    owner = start_peer(&scratch);
    importer = start_peer(&scratch);
    slot = region.slot + 1;
    tell(&owner, (struct order) {EXPORT, shared_memory_key("a", 1), 2 * MIB, 0});
    tell(&owner, (struct order) {EXPORT, shared_memory_key("b", 1), 4 * MIB, 0});
    first = tell(&importer, (struct order) {.what = IMPORT, .key = shared_memory_key("a", 1)});
    CHECK("paid", first.said);
    kill_peer(&owner);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL("open memory of the dead owner, at each reap", used(), 2 * MIB);
    CHECK_EQUAL("in its slot", region.usage->charged[0][slot], 2 * MIB);
    CHECK_EQUAL("and nowhere else", region.usage->orphaned[0], 0);
    owner = start_peer(&scratch);
    CHECK_EQUAL("its slot is not given again", region.usage->charged[0][slot], 2 * MIB);
    opened = tell(&owner, (struct order) {.what = IMPORT, .key = shared_memory_key("a", 1)});
    CHECK("another may open it, paid", opened.said);
    tell(&importer, (struct order) {.what = END_IMPORT, .link = first.link});
    kill_peer(&importer);
    CHECK_EQUAL("that one has it", used(), 2 * MIB);
    CHECK_EQUAL("the limit is exact", ledger_charge(&ledger, 0, 98 * MIB + 1), (uint64_t) -ENOMEM);
    kill_peer(&owner);
    CHECK_EQUAL("a dead importer has nothing", used(), 0);
    CHECK_EQUAL("the slot is free", region.usage->slots[slot].pid, 0);
    CHECK_EQUAL("and sums are short again", region.usage->high_water, 1);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void orphans_slot_is_not_reused(void)
{
    struct scratch scratch = scratch_make(0);
    struct flock others = {.l_type = F_WRLCK, .l_start = USAGE_LOCK_SLOT + 2, .l_len = 1022};
    struct region_reason reason;
    struct region late;
    struct peer owner;
    link_t import;
    int paid;
    int fd;

    join(&scratch);
    owner = start_peer(&scratch);
    tell(&owner, (struct order) {EXPORT, shared_memory_key("a", 1), MIB, 0});
    import = shared_memory_import(&region, shared_memory_key("a", 1), &paid);
    kill_peer(&owner);
    fd = open(scratch.usage, O_RDWR);
    CHECK("all other slots are taken", fcntl(fd, F_OFD_SETLK, &others) == 0);
    CHECK_EQUAL("opens", scratch_open(&scratch, &late, &reason), REGION_OK);
    CHECK_EQUAL("no slot", slots_claim(&late, 0, &reason), REGION_FULL);
    CHECK("the message says why", strstr(reason.text, "ended processes shared"));
    CHECK_EQUAL("it stays charged", used(), MIB);
    shared_memory_end_import(&region, import);
    CHECK_EQUAL("now there is one", slots_claim(&late, 0, &reason), REGION_OK);
    CHECK_EQUAL("that slot", late.slot, 1);
    slots_release(&late);
    close(fd);
    scratch_close(&late);
    scratch_remove(&scratch);
}

static void full_table_refuses(void)
{
    struct scratch scratch = scratch_make(0);
    link_t last = 0;
    int paid = 1;

    join(&scratch);
    for (unsigned i = 0; i < REGION_LINKS; i++)
        last = shared_memory_export(&region, shared_memory_key(&i, sizeof(i)), 0, 1);
    CHECK_EQUAL("every place is used", last, REGION_LINKS);
    CHECK_EQUAL("no export", shared_memory_export(&region, 1, 0, 1), 0);
    CHECK("no import",
          !shared_memory_import(&region, shared_memory_key(&(unsigned) {3}, 4), &paid) && !paid);
    slots_release(&region);
    join(&scratch);
    CHECK_EQUAL("and all come back", shared_memory_export(&region, 1, 0, 1), 1);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void files_of_layout_1_hold_their_limit_and_share_nothing(void)
{
    struct scratch scratch = scratch_make(0);
    struct quota_limits limits;
    int paid = 1;

    scratch_make_old(&scratch, 5 * MIB);
    join(&scratch);
    CHECK("limits are valid", region_limits(region.quota, &limits));
    CHECK_EQUAL("and what was written", limits.devices[0].vmemory, 5 * MIB);
    CHECK_EQUAL("nothing was measured", region.extra_total[0], 0);
    region.usage->orphaned[0] = 99 * MIB;
    CHECK_EQUAL("what an old shim left counts", ledger_charge(&ledger, 0, 2 * MIB),
                (uint64_t) -ENOMEM);
    CHECK_EQUAL("no more than that", ledger_charge(&ledger, 0, MIB), 0);
    CHECK_EQUAL("no export", shared_memory_export(&region, 1, 0, MIB), 0);
    CHECK("no import", !shared_memory_import(&region, 1, &paid) && !paid);
    CHECK_EQUAL("nothing to collect", shared_memory_collect(&region, 0, 0), 0);
    CHECK_EQUAL("the dead leave nothing", shared_memory_orphaned(&region, 0, 0, 0), 0);
    slots_release(&region);
    CHECK_EQUAL("a slot given back holds nothing", used(), 99 * MIB);
    scratch_close(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    files_of_layout_1_hold_their_limit_and_share_nothing();
    import_is_paid_while_its_key_is_exported();
    unopened_export_ends_with_its_free();
    dead_owner_is_charged_until_the_last_import_ends();
    orphans_slot_is_not_reused();
    full_table_refuses();
    return check_end();
}
