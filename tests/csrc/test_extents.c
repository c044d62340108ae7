/* SPDX-License-Identifier: Apache-2.0 */
/* test_extents.c -- free ranges of pools: a range known to be free must be free in the driver.
 *
 * The last test simulates a driver that places blocks, with padding, anywhere in its free pages,
 * and compares the known ranges with it.
 */
#include "check.h"
#include "core/extents.h"

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static struct extents extents;
static struct extents_owner owner;
static struct extents_lane first;
static struct extents_lane second;

static uint64_t padded(uint64_t bytes)
{
    uint64_t unit = bytes < MIB ? 512 : 2 * MIB;

    return (bytes + unit - 1) & ~(unit - 1);
}

static int use(uint64_t start, uint64_t bytes)
{
    return extents_use(&extents, &owner, start, bytes, padded(bytes));
}

static void give(uint64_t start, uint64_t bytes, uint64_t region, struct extents_lane *lane,
                 uint64_t order)
{
    extents_put(&extents, &(struct extent) {.start = start,
                                            .bytes = bytes,
                                            .owner = &owner,
                                            .region = region,
                                            .lane = lane,
                                            .order = order,
                                            .block = start,
                                            .block_bytes = bytes,
                                            .block_end = start + padded(bytes),
                                            .padding = padded(bytes) - bytes});
}

/* Free a block that is in use. */
static void release(uint64_t start, struct extents_lane *lane, uint64_t order)
{
    struct extent taken;

    if (!extents_take(&extents, start, &taken))
        CHECK("it is in use", 0);
    else
        give(start, taken.bytes, taken.region, lane, order);
}

static uint64_t has(uint64_t bytes)
{
    const struct extent *found = extents_next_free(&owner, NULL, bytes, padded(bytes));

    return found ? found->start : 0;
}

static void begin(void)
{
    struct extent ignored;

    while (extents.next[0] && !extents.next[0]->lane)
        extents_take(&extents, extents.next[0]->start, &ignored);
    extents_forget(&extents, &owner);
    while (extents.next[0])
        extents_take(&extents, extents.next[0]->start, &ignored);
    first = second = (struct extents_lane) {.done = 0};
}

static void freed_block_serves_same_size(void)
{
    begin();
    CHECK_EQUAL("nothing is known", use(100 * MIB, 3 * MIB + 7), 0);
    release(100 * MIB, &first, 1);
    CHECK_EQUAL("its size", has(3 * MIB + 7), 100 * MIB);
    CHECK_EQUAL("not more", has(3 * MIB + 8), 0);
    CHECK_EQUAL("it is served", use(100 * MIB, 3 * MIB + 7), 1);
    CHECK_EQUAL("once", has(512), 0);
}

/* A region from 100 MiB on, of blocks of 32 MiB that are in use. */
static void use_region(unsigned blocks)
{
    begin();
    use(100 * MIB, blocks * 32 * MIB);
    release(100 * MIB, &extents_any, 0);
    for (unsigned i = 0; i < blocks; i++)
        CHECK("of the region", use((100 + 32 * i) * MIB, i ? 32 * MIB : 31 * MIB));
}

static void adjacent_blocks_merge(void)
{
    use_region(3);
    release(100 * MIB, &first, 1);
    release(164 * MIB, &first, 2);
    CHECK_EQUAL("not over what is in use", has(64 * MIB), 0);
    release(132 * MIB, &first, 3);
    CHECK_EQUAL("over the padding", has(96 * MIB), 100 * MIB);
    CHECK_EQUAL("ranges of the lane", first.extents, 1);
}

static void regions_do_not_merge(void)
{
    begin();
    use(100 * MIB, 32 * MIB);
    use(132 * MIB, 32 * MIB);
    release(100 * MIB, &first, 1);
    release(132 * MIB, &first, 2);
    CHECK_EQUAL("not over the border", has(34 * MIB), 0);
    CHECK("up to it", has(32 * MIB));
}

static void streams_do_not_share_until_done(void)
{
    use_region(2);
    release(100 * MIB, &first, 1);
    release(132 * MIB, &second, 1);
    CHECK_EQUAL("not yet", has(64 * MIB), 0);
    use_region(2);
    release(100 * MIB, &first, 1);
    first.done = 1;
    release(132 * MIB, &second, 1);
    CHECK_EQUAL("now", has(64 * MIB), 100 * MIB);
    CHECK_EQUAL("in the order of the second", second.extents, 1);
}

static void partial_use_leaves_the_rest(void)
{
    begin();
    use(100 * MIB, 64 * MIB);
    release(100 * MIB, &first, 1);
    CHECK_EQUAL("from the middle", use(110 * MIB, 10 * MIB), 1);
    CHECK_EQUAL("behind", has(44 * MIB), 120 * MIB);
    CHECK_EQUAL("not the whole", has(46 * MIB), 0);
    CHECK_EQUAL("before", use(100 * MIB, 10 * MIB), 1);
    CHECK_EQUAL("elsewhere", use(400 * MIB, MIB), 0);
}

static void reused_address_drops_stale_range(void)
{
    begin();
    use(100 * MIB, 64 * MIB);
    use(130 * MIB, 64 * MIB);
    CHECK("it went", extents_find(&extents, 100 * MIB) == NULL);
    give(120 * MIB, 20 * MIB, 0, &first, 1);
    CHECK_EQUAL("what is used is not free", has(512), 0);
    release(130 * MIB, &first, 1);
    CHECK_EQUAL("it is now", has(64 * MIB), 130 * MIB);
}

static void shaved_bytes_are_forgotten(void)
{
    begin();
    use(100 * MIB, 64 * MIB);
    use(200 * MIB, 32 * MIB);
    release(100 * MIB, &first, 1);
    release(200 * MIB, &first, 2);
    extents_shave(&extents, &owner, 30 * MIB, 30 * MIB);
    CHECK_EQUAL("of what fits", has(64 * MIB), 100 * MIB);
    CHECK_EQUAL("as much as was taken", has(3 * MIB), 100 * MIB);
    extents_shave(&extents, &owner, 65 * MIB, 65 * MIB);
    CHECK_EQUAL("or of the largest", has(2 * MIB), 0);
    extents_shave(&extents, &owner, 100 * MIB, 100 * MIB);
    CHECK_EQUAL("nothing is left", has(512), 0);
    CHECK_EQUAL("nor of the lane", first.extents, 0);
}

/* --- a driver of pages of 512 bytes ----------------------------------------------------------- */

enum { PAGES = 1 << 16, BLOCKS = 256, STEPS = 60000 };

static unsigned char pages[PAGES];

static int is_free_from(uint64_t page, uint64_t count)
{
    return page + count <= PAGES && !memchr(pages + page, 1, count);
}

static void known_is_free(const uint64_t base)
{
    for (const struct extent *extent = extents.next[0]; extent; extent = extent->next[0])
        if (extent->lane)
            CHECK("known to be free",
                  is_free_from((extent->start - base) / 512, extent->bytes / 512));
}

static void known_free_space_matches_a_random_driver(void)
{
    static struct {
        uint64_t page, bytes;
    } blocks[BLOCKS];
    const uint64_t base = 64 * MIB;
    uint64_t served = 0;

    begin();
    srand(7);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned) rand() % BLOCKS;
        uint64_t bytes = 1 + (uint64_t) rand() % (rand() % 8 ? 4096 : 5 * MIB);
        uint64_t page = (uint64_t) rand() % PAGES;

        if (blocks[i].bytes) {
            memset(pages + blocks[i].page, 0, padded(blocks[i].bytes) / 512);
            release(base + blocks[i].page * 512, rand() % 4 ? &first : &second, step);
            blocks[i].bytes = 0;
        } else {
            const uint64_t known = has(bytes);

            if (known) { /* the driver would use it, too */
                page = (known - base) / 512;
                CHECK("served from what is known", is_free_from(page, padded(bytes) / 512));
                served++;
            }
            if (!is_free_from(page, padded(bytes) / 512))
                continue;
            memset(pages + page, 1, padded(bytes) / 512);
            CHECK("as it said", !known || use(base + page * 512, bytes));
            if (!known)
                use(base + page * 512, bytes);
            blocks[i].page = page;
            blocks[i].bytes = bytes;
        }
        if (step % 64 == 0)
            known_is_free(base);
        if (step % 4096 == 0)
            extents_forget(&extents, &owner);
    }
    CHECK("often", served > STEPS / 8);
}

int main(void)
{
    freed_block_serves_same_size();
    adjacent_blocks_merge();
    regions_do_not_merge();
    streams_do_not_share_until_done();
    partial_use_leaves_the_rest();
    reused_address_drops_stale_range();
    shaved_bytes_are_forgotten();
    known_free_space_matches_a_random_driver();
    begin();
    return check_end();
}
