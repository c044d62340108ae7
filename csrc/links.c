/* SPDX-License-Identifier: Apache-2.0 */
/* links.c -- the table of exports and imports of one container; see links.h.
 *
 * Who opens memory first writes its import and then looks for an export; who ends an export first
 * marks it, so that no import matches it, and then looks for imports. So one of the two sees the
 * other: memory that somebody opens is charged by its owner or by who opens it.
 *
 * An entry is taken by a compare-and-swap that writes its owner's slot; its bytes follow, then its
 * whole word. Whose lock is free wrote whatever stands there in vain, at any stage.
 */
#include "links.h"
#include "carrier.h"
#include "compiler.h"

#define LINK_HASH (~UINT64_C(0) << LINK_HASH_SHIFT)

uint64_t links_key(const void *bytes, size_t size)
{
    uint64_t hash = region_hash(bytes, size);

    hash ^= hash >> 32; /* the words keep the upper bits alone */
    hash *= UINT64_C(0x9e3779b97f4a7c15);
    return hash ? hash : 1;
}

static uint64_t word_of(const struct region *region, uint64_t key, unsigned device, uint64_t kind)
{
    return (key & LINK_HASH) | kind | ((uint64_t) device << LINK_DEVICE_SHIFT) |
           ((uint64_t) region->slot + 1);
}

static int belongs_to(uint64_t word, unsigned slot)
{
    return (word & LINK_SLOT_MASK) == slot + 1;
}

static unsigned device_of(uint64_t word)
{
    return (unsigned) (word >> LINK_DEVICE_SHIFT) & LINK_DEVICE_MASK;
}

static int have_one_key(uint64_t word, uint64_t other)
{
    return ((word ^ other) & LINK_HASH) == 0;
}

static unsigned count_links(const struct region *region)
{
    uint32_t end = region->links ? __atomic_load_n(&region->usage->link_end, __ATOMIC_SEQ_CST) : 0;

    return likely(end <= REGION_LINKS) ? end : REGION_LINKS;
}

static uint64_t read_word(const struct region *region, unsigned place)
{
    return __atomic_load_n(&region->links[place].word, __ATOMIC_SEQ_CST);
}

/* Write an entry into the first place that is free; the low ones are used again, and scans stay
 * short. */
static link_t write_link(struct region *region, uint64_t word, uint64_t bytes)
{
    uint64_t writing = word & LINK_SLOT_MASK;

    if (!region->links)
        return 0;
    for (unsigned place = 0; place < REGION_LINKS; place++) {
        struct usage_link *link = &region->links[place];
        uint64_t nobody = 0;

        if (__atomic_load_n(&link->word, __ATOMIC_RELAXED) ||
            !__atomic_compare_exchange_n(&link->word, &nobody, writing, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        raise_mark(&region->usage->link_end, place + 1);
        __atomic_store_n(&link->bytes, bytes, __ATOMIC_RELAXED);
        __atomic_store_n(&link->word, word, __ATOMIC_SEQ_CST);
        return (link_t) (place + 1);
    }
    return 0;
}

static void erase_link(const struct region *region, unsigned place)
{
    __atomic_store_n(&region->links[place].word, 0, __ATOMIC_SEQ_CST);
}

link_t links_export(struct region *region, uint64_t key, unsigned device, uint64_t bytes,
                    unsigned flags)
{
    uint64_t kind = LINK_EXPORT | (flags & LINK_DESCRIPTOR ? LINK_CARRIED : 0);

    return write_link(region, word_of(region, key, device, kind), bytes);
}

void links_carry(struct region *region, link_t link, int descriptor, int first)
{
    uint64_t *word = &region->links[link - 1U].word;

    if (descriptor < 0 || !carrier_mark(region, descriptor, link - 1U))
        __atomic_and_fetch(word, ~(uint64_t) LINK_TRACKED, __ATOMIC_SEQ_CST);
    else if (first)
        __atomic_or_fetch(word, LINK_TRACKED, __ATOMIC_SEQ_CST);
}

void links_resize(struct region *region, link_t link, uint64_t bytes)
{
    if (link)
        __atomic_store_n(&region->links[link - 1U].bytes, bytes, __ATOMIC_RELEASE);
}

void links_cancel_export(struct region *region, link_t link)
{
    if (link)
        erase_link(region, link - 1U);
}

/* Whether a process lives that could take what is in a descriptor of *slot*. */
static int others_live(const struct usage_file *usage, unsigned slot)
{
    uint32_t end = __atomic_load_n(&usage->high_water, __ATOMIC_SEQ_CST);

    for (unsigned other = 0; other < end && other < REGION_SLOTS; other++) {
        const struct usage_slot *found = &usage->slots[other];

        if (other != slot && __atomic_load_n(&found->pid, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&found->state, __ATOMIC_ACQUIRE) != SLOT_DEAD)
            return 1;
    }
    return 0;
}

/* An export that was freed and stays charged because of an import. */
static int is_kept_for_import(const struct region *region, unsigned place, uint64_t word)
{
    uint64_t kind = word & (LINK_EXPORT | LINK_FREED | LINK_ENDING);

    if (kind != (LINK_EXPORT | LINK_FREED))
        return 0;
    if (word & LINK_TRACKED)
        return carrier_look(region, place) == CARRIER_CLOSED;
    return !(word & LINK_CARRIED) || word & LINK_SEEN;
}

/* Whether a descriptor with a carried export is open, or may be. Who imports what is in one does so
 * before he closes it: so this is asked before imports are looked for. */
static int is_on_its_way(const struct region *region, unsigned place, uint64_t word)
{
    enum carrier carrier = word & LINK_TRACKED ? carrier_look(region, place) : CARRIER_UNKNOWN;

    if (carrier != CARRIER_UNKNOWN)
        return carrier == CARRIER_OPEN;
    return !(word & LINK_SEEN) &&
           others_live(region->usage, (unsigned) (word & LINK_SLOT_MASK) - 1);
}

/* Whether somebody has the freed export of *place* open, or may open it. Several exports can have
 * one key, if they were made of descriptors: then each import keeps one of them. */
static int is_held(const struct region *region, unsigned place, uint64_t word)
{
    unsigned end = count_links(region);
    unsigned imports = 0;
    unsigned kept = 0; /* other exports that are charged for these imports */

    if ((word & LINK_CARRIED) && is_on_its_way(region, place, word))
        return 1;
    for (unsigned i = 0; i < end; i++) {
        uint64_t other = read_word(region, i);

        if ((other & LINK_UNKNOWN) && (word & LINK_CARRIED))
            return 1;
        if (i == place || !have_one_key(word, other))
            continue;
        imports += (other & LINK_IMPORT) != 0;
        kept += (unsigned) is_kept_for_import(region, i, other);
    }
    return imports > kept;
}

/* End an export, which nobody else is about to end: 1 if its entry is gone, 0 if it is held. */
static int end_export(const struct region *region, unsigned place)
{
    uint64_t *entry = &region->links[place].word;
    uint64_t word = __atomic_or_fetch(entry, LINK_ENDING, __ATOMIC_SEQ_CST);
    uint64_t decided;

    do /* again only if an import has marked it as seen meanwhile */
        decided = is_held(region, place, word) ? (word & ~(uint64_t) LINK_ENDING) | LINK_FREED : 0;
    while (
        !__atomic_compare_exchange_n(entry, &word, decided, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return !decided;
}

int links_end_export(struct region *region, link_t link)
{
    if (!link || end_export(region, link - 1U))
        return 1;
    __atomic_add_fetch(&region->links_freed, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Give up the entry of *place* if it is this process's, freed, and nobody has it any more. */
static uint64_t collect_link(struct region *region, unsigned place, unsigned device)
{
    uint64_t word = read_word(region, place);
    uint64_t kind = word & (LINK_EXPORT | LINK_FREED | LINK_ENDING);
    uint64_t bytes;

    if (kind != (LINK_EXPORT | LINK_FREED) || !belongs_to(word, (unsigned) region->slot) ||
        device_of(word) != device)
        return 0;
    /* Of several threads the one that marks it decides. */
    if (!__atomic_compare_exchange_n(&region->links[place].word, &word, word | LINK_ENDING, 0,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    bytes = __atomic_load_n(&region->links[place].bytes, __ATOMIC_RELAXED);
    if (!end_export(region, place))
        return 0;
    __atomic_sub_fetch(&region->links_freed, 1, __ATOMIC_SEQ_CST);
    return bytes;
}

uint64_t links_collect(struct region *region, unsigned device)
{
    uint64_t bytes = 0;
    unsigned end;

    if (likely(!__atomic_load_n(&region->links_freed, __ATOMIC_RELAXED)))
        return 0;
    end = count_links(region);
    for (unsigned place = 0; place < end; place++)
        bytes += collect_link(region, place, device);
    return bytes;
}

static int is_unseen(uint64_t word, uint64_t import)
{
    uint64_t kind = word & (LINK_EXPORT | LINK_CARRIED | LINK_SEEN);

    return kind == (LINK_EXPORT | LINK_CARRIED) && have_one_key(word, import);
}

/* Mark that the export of *place* was imported, if it is still one that was not. */
static int mark_seen(const struct region *region, unsigned place, uint64_t import)
{
    uint64_t word = read_word(region, place);

    while (is_unseen(word, import))
        if (__atomic_compare_exchange_n(&region->links[place].word, &word, word | LINK_SEEN, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

/* Look for exports that match *import*: whether there is one that stays charged. Of those in
 * descriptors, one that was never imported is now. */
static int find_export(const struct region *region, uint64_t import)
{
    unsigned end = count_links(region);
    int found = 0;
    int marked = 0;

    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (!have_one_key(word, import) || !(word & LINK_EXPORT))
            continue;
        found |= !(word & LINK_ENDING);
        if (!marked)
            marked = mark_seen(region, place, import);
    }
    return found;
}

link_t links_import(struct region *region, uint64_t key, int *paid)
{
    uint64_t word = word_of(region, key, 0, LINK_IMPORT);
    link_t link = write_link(region, word, 0);

    *paid = link && find_export(region, word);
    return link;
}

link_t links_import_unknown(struct region *region)
{
    return write_link(region, word_of(region, 0, 0, LINK_UNKNOWN), 0);
}

void links_end_import(struct region *region, link_t link)
{
    if (link)
        erase_link(region, link - 1U);
}

void links_close_imports(const struct region *region, unsigned slot)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (belongs_to(word, slot) && !(word & LINK_EXPORT))
            erase_link(region, place);
    }
}

uint64_t links_orphaned(struct region *region, unsigned slot, unsigned device)
{
    unsigned end = count_links(region);
    uint64_t bytes = 0;

    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (!belongs_to(word, slot) || !(word & LINK_EXPORT) || device_of(word) != device)
            continue;
        /* Most of the time nothing has changed: then no import must miss it meanwhile. */
        if (((word & LINK_FREED) && !(word & LINK_ENDING) && is_held(region, place, word)) ||
            !end_export(region, place))
            bytes += __atomic_load_n(&region->links[place].bytes, __ATOMIC_RELAXED);
    }
    return bytes;
}

void links_forget(const struct region *region, unsigned slot)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++)
        if (belongs_to(read_word(region, place), slot))
            erase_link(region, place);
}
