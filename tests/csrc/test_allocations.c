/* SPDX-License-Identifier: Apache-2.0 */
/* test_allocations.c -- the table of allocations, compared with a simple model. */
#include "core/allocations.h"
#include "core/blocks.h"
#include "check.h"

#include <pthread.h>
#include <stdlib.h>

#define ADDRESSES 5000

static struct allocation entry(uint64_t address, uint64_t bytes, const void *owner)
{
    return (struct allocation) {.address = address, .bytes = bytes, .owner = owner};
}

static void add_bytes(const struct allocation *gone, void *sum)
{
    *(uint64_t *) sum += gone->bytes;
}

static uint64_t bytes_taken_owned(const void *owner)
{
    uint64_t bytes = 0;

    allocations_take_owned(owner, add_bytes, &bytes);
    return bytes;
}

static void take_returns_inserted_entry_once(void)
{
    struct allocation in = entry(0x7000, 512, NULL);
    struct allocation out;

    CHECK("insert succeeds", allocations_insert(&in, &out) == 0);
    CHECK("the entry is found", allocations_take(ALLOCATION_LINEAR, 0x7000, &out) == 1);
    CHECK_EQUAL("its bytes", out.bytes, 512);
    CHECK("it is gone then", allocations_take(ALLOCATION_LINEAR, 0x7000, &out) == 0);
    CHECK("address 0 is never there", allocations_take(ALLOCATION_LINEAR, 0, &out) == 0);
}

static void inserting_same_address_returns_old_entry(void)
{
    struct allocation first = entry(0x7000, 512, NULL);
    struct allocation second = entry(0x7000, 1024, &first);
    struct allocation out = {0};

    CHECK_EQUAL("new", allocations_insert(&first, &out), 0);
    CHECK_EQUAL("not new", allocations_insert(&second, &out), 1);
    CHECK_EQUAL("what was there", out.bytes, 512);
    CHECK("another's is not taken back", allocations_take_back(&first) == 0);
    second.life = 1;
    CHECK("nor that of another life", allocations_take_back(&second) == 0);
    second.life = 0;
    CHECK("its own is", allocations_take_back(&second) == 1);
    CHECK("once", allocations_take_back(&second) == 0);
}

static void kinds_have_separate_entries(void)
{
    struct allocation linear = entry(0x7000, 512, NULL);
    struct allocation array = entry(0x7000, 1024, NULL);
    struct allocation out;

    array.kind = ALLOCATION_ARRAY;
    CHECK_EQUAL("new", allocations_insert(&linear, &out), 0);
    CHECK_EQUAL("new, too", allocations_insert(&array, &out), 0);
    CHECK("one kind", allocations_take(ALLOCATION_LINEAR, 0x7000, &out) == 1);
    CHECK_EQUAL("its bytes", out.bytes, 512);
    CHECK("the other stays", allocations_find(ALLOCATION_ARRAY, 0x7000, &out) == 1);
    CHECK_EQUAL("with its bytes", out.bytes, 1024);
    CHECK("and stays", allocations_take(ALLOCATION_ARRAY, 0x7000, &out) == 1);
    CHECK("until it is taken", allocations_find(ALLOCATION_ARRAY, 0x7000, &out) == 0);
}

static void link_is_set_once(void)
{
    struct allocation in = entry(0x7000, 512, NULL);
    struct allocation out;

    CHECK("not to what is not there", allocations_set_link(ALLOCATION_LINEAR, 0x7000, 5) == 0);
    allocations_insert(&in, &out);
    CHECK("to an entry without one", allocations_set_link(ALLOCATION_LINEAR, 0x7000, 5) == 1);
    CHECK("not again", allocations_set_link(ALLOCATION_LINEAR, 0x7000, 6) == 0);
    allocations_take(ALLOCATION_LINEAR, 0x7000, &out);
    CHECK_EQUAL("it comes with the entry", out.link, 5);
}

/* Small linear memory is in its block and not in the table, until it gets a link. */
static void recorded_allocations_are_found_like_others(void)
{
    static const uint64_t address = UINT64_C(0x7f0000000000);
    struct blocks_owner owner = {&owner, 1, 0};
    struct allocation large = entry(address, UINT64_C(4) << 20, NULL);
    struct allocation out = {0};
    int mixed = 0;

    blocks_record(address, 512, &owner, &mixed);
    CHECK("an empty block may have one in the table", mixed);
    CHECK("found", allocations_find(ALLOCATION_LINEAR, address, &out) == 1);
    CHECK("recorded", out.recorded);
    CHECK("of no other kind", !allocations_find(ALLOCATION_OPENED, address, &out));
    CHECK("not in the table", !allocations_take_unrecorded(address, &out));
    CHECK("linked", allocations_set_link(ALLOCATION_LINEAR, address, 5) == 1);
    CHECK("once", allocations_set_link(ALLOCATION_LINEAR, address, 6) == 0);
    CHECK("taken back by its owner only", !allocations_take_back(&large));
    CHECK("taken", allocations_take(ALLOCATION_LINEAR, address, &out) == 1);
    CHECK("with the link", out.link == 5 && out.in_block && !out.recorded && out.bytes == 512);
    CHECK("counted once", blocks_leave(address));
    blocks_record(address, 512, &owner, &mixed);
    CHECK_EQUAL("a large one in its place", allocations_insert(&large, &out), 1);
    CHECK("what was there", out.recorded && out.bytes == 512 && blocks_leave(address));
    CHECK("taken once", allocations_take(ALLOCATION_LINEAR, address, &out) == 1 &&
                            out.bytes == large.bytes &&
                            !allocations_take(ALLOCATION_LINEAR, address, &out));
    blocks_record(address, 1024, &owner, &mixed);
    CHECK_EQUAL("all of an owner", bytes_taken_owned(&owner), 1024);
    CHECK("gone", !allocations_find(ALLOCATION_LINEAR, address, &out) && blocks_leave(address));
}

static void find_by_inner_address(void)
{
    struct allocation in = entry(0x7000000, 4096, NULL);
    struct allocation out;

    in.kind = ALLOCATION_MAPPING;
    allocations_insert(&in, &out);
    CHECK("its first byte", allocations_find_around(ALLOCATION_MAPPING, 0x7000000, &out) == 1);
    CHECK("its last", allocations_find_around(ALLOCATION_MAPPING, 0x7000fff, &out) == 1);
    CHECK_EQUAL("is the entry's", out.address, 0x7000000);
    CHECK("not one more", allocations_find_around(ALLOCATION_MAPPING, 0x7001000, &out) == 0);
    CHECK("nor one less", allocations_find_around(ALLOCATION_MAPPING, 0x6ffffff, &out) == 0);
    CHECK("nor of another kind", allocations_find_around(ALLOCATION_LINEAR, 0x7000001, &out) == 0);
    allocations_take(ALLOCATION_MAPPING, 0x7000000, &out);
}

static int add_byte(struct allocation *entry, void *change)
{
    entry->bytes += *(uint64_t *) change;
    return entry->bytes != 0;
}

static void entry_changes_in_place(void)
{
    struct allocation in = entry(0x7000, 1, NULL);
    struct allocation out;
    uint64_t more = 1;
    uint64_t less = UINT64_MAX;

    CHECK("not what is not there",
          allocations_change(ALLOCATION_LINEAR, 0x7000, add_byte, &more) == 0);
    CHECK("it is made", allocations_insert_or_change(&in, add_byte, &more) == 0);
    CHECK("and then changed", allocations_insert_or_change(&in, add_byte, &more) == 0);
    CHECK("it is there", allocations_change(ALLOCATION_LINEAR, 0x7000, add_byte, &less) == 1);
    CHECK("and stays", allocations_find(ALLOCATION_LINEAR, 0x7000, &out) == 1);
    CHECK_EQUAL("as changed", out.bytes, 1);
    CHECK("the last goes", allocations_change(ALLOCATION_LINEAR, 0x7000, add_byte, &less) == 1);
    CHECK("with the entry", allocations_find(ALLOCATION_LINEAR, 0x7000, &out) == 0);
}

static void random_operations_match_model(void)
{
    static uint64_t model[ADDRESSES];
    int owners[3];
    struct allocation out;
    uint64_t expected = 0;

    srand(1);
    for (int step = 0; step < 400000; step++) {
        unsigned i = (unsigned) rand() % ADDRESSES;
        uint64_t address = 0x7f0000000000 + (uint64_t) i * 512;

        if (model[i]) {
            CHECK("what is in is found", allocations_take(ALLOCATION_LINEAR, address, &out) == 1);
            CHECK_EQUAL("with its bytes", out.bytes, model[i]);
            model[i] = 0;
        } else {
            struct allocation in = entry(address, 1 + (uint64_t) rand(), &owners[i % 3]);

            CHECK("what is not in is not found",
                  allocations_take(ALLOCATION_LINEAR, address, &out) == 0);
            CHECK("there is room", allocations_insert(&in, &out) == 0);
            model[i] = in.bytes;
        }
    }
    for (unsigned i = 0; i < ADDRESSES; i++)
        if (i % 3 == 1)
            expected += model[i];
    CHECK_EQUAL("all of one owner", bytes_taken_owned(&owners[1]), expected);
    CHECK_EQUAL("and only once", bytes_taken_owned(&owners[1]), 0);
    for (unsigned i = 0; i < ADDRESSES; i++) {
        int there = allocations_take(ALLOCATION_LINEAR, 0x7f0000000000 + (uint64_t) i * 512, &out);

        CHECK("others kept theirs", there == (i % 3 != 1 && model[i] != 0));
    }
}

static void *insert_and_take(void *start)
{
    uintptr_t found = 0;
    struct allocation out;

    for (int round = 0; round < 200; round++)
        for (uint64_t i = 0; i < 300; i++) {
            struct allocation in = entry((uintptr_t) start + i * 512, 1, start);

            allocations_insert(&in, &out);
            if (i >= 100)
                found += (uintptr_t) allocations_take(ALLOCATION_LINEAR,
                                                      (uintptr_t) start + (i - 100) * 512, &out);
        }
    return (void *) found;
}

static void concurrent_threads_lose_no_entry(void)
{
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, insert_and_take, (void *) ((i + 1) << 32));
    for (uintptr_t i = 0; i < 4; i++) {
        void *found;

        pthread_join(threads[i], &found);
        CHECK_EQUAL("every take found its entry", (uintptr_t) found, 200 * 200);
        CHECK_EQUAL("the last hundred stayed", bytes_taken_owned((void *) ((i + 1) << 32)), 100);
    }
}

int main(void)
{
    take_returns_inserted_entry_once();
    inserting_same_address_returns_old_entry();
    kinds_have_separate_entries();
    link_is_set_once();
    recorded_allocations_are_found_like_others();
    find_by_inner_address();
    entry_changes_in_place();
    random_operations_match_model();
    concurrent_threads_lose_no_entry();
    return check_end();
}
