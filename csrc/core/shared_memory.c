/* SPDX-License-Identifier: Apache-2.0 */
/* shared_memory.c -- the table of exports and imports of one container; see shared_memory.h.
 *
 * A process that opens memory first writes its import and then looks for an export; a process that
 * ends an export first marks it, so that no import matches it, and then looks for imports and
 * descriptors. So one of the two sees the other: opened memory is charged either to its owner or to
 * the process that opens it.
 *
 * An entry is taken by a compare-and-swap that writes its owner's slot; its bytes follow, then its
 * whole word. If the owner dies at any stage, the process that reaps its slot settles the entry.
 */
#include "core/shared_memory.h"
#include "core/fd_marker.h"
#include "core/compiler.h"

#include <string.h>

#define LINK_HASH (~UINT64_C(0) << LINK_HASH_SHIFT)

uint64_t shared_memory_key(const void *bytes, size_t size)
{
    uint64_t hash = region_hash(bytes, size);

    hash ^= hash >> 32; /* words store only the upper bits */
    hash *= UINT64_C(0x9e3779b97f4a7c15);
    return hash ? hash : 1;
}

uint64_t shared_memory_new_key(const struct region *region)
{
    static uint64_t count;
    uint64_t described[] = {0, 0, (uint64_t) region->slot, clock_now_ns(CLOCK_MONOTONIC),
                            __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED)};

    memcpy(described, region->usage->header.region_id, sizeof(region->usage->header.region_id));
    return shared_memory_key(described, sizeof(described));
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

static unsigned count_links(const struct region *region)
{
    uint32_t end = region->links ? __atomic_load_n(&region->usage->link_end, __ATOMIC_SEQ_CST) : 0;

    return likely(end <= REGION_LINKS) ? end : REGION_LINKS;
}

static uint64_t read_word(const struct region *region, unsigned place)
{
    return __atomic_load_n(&region->links[place].word, __ATOMIC_SEQ_CST);
}

/* Write an entry at the first free index: low indexes are reused, so that scans stay short. */
static link_t write_link(struct region *region, uint64_t word, uint64_t bytes)
{
    uint64_t writing = word & LINK_SLOT_MASK;

    if (!region->links)
        return 0;
    for (unsigned place = 0; place < REGION_LINKS; place++) {
        struct usage_link *link = &region->links[place];
        uint64_t unused = 0;

        if (__atomic_load_n(&link->word, __ATOMIC_RELAXED) ||
            !__atomic_compare_exchange_n(&link->word, &unused, writing, 0, __ATOMIC_SEQ_CST,
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

link_t shared_memory_export(struct region *region, uint64_t key, unsigned device, uint64_t bytes)
{
    return write_link(region, word_of(region, key, device, LINK_EXPORT), bytes);
}

uint64_t shared_memory_key_of(const struct region *region, link_t link)
{
    return read_word(region, link - 1U) & LINK_HASH;
}

/* Mark the export at *place*, if it still has *key*. */
static int mark(const struct region *region, unsigned place, uint64_t key, uint64_t kind)
{
    uint64_t word = read_word(region, place);

    while (shared_memory_same_key(word, key) && (word & LINK_EXPORT))
        if (__atomic_compare_exchange_n(&region->links[place].word, &word, word | kind, 0,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

static int mark_export(const struct region *region, uint64_t key, uint64_t kind)
{
    unsigned end = count_links(region);
    int marked = 0;

    for (unsigned place = 0; place < end; place++)
        marked |= mark(region, place, key, kind);
    return marked;
}

int shared_memory_carry(struct region *region, uint64_t key, int descriptor)
{
    struct fd_marker marker;
    int done;

    fd_marker_begin(&marker, region->usage, 0);
    done = fd_marker_mark(&marker, descriptor, key & LINK_HASH);
    fd_marker_end(&marker);
    return mark_export(region, key, done ? LINK_CARRIED : LINK_UNTRACKED);
}

int shared_memory_lose_track(struct region *region, uint64_t key)
{
    return mark_export(region, key, LINK_UNTRACKED);
}

void shared_memory_resize(struct region *region, link_t link, uint64_t bytes)
{
    if (link)
        __atomic_store_n(&region->links[link - 1U].bytes, bytes, __ATOMIC_RELEASE);
}

void shared_memory_cancel_export(struct region *region, link_t link)
{
    if (link)
        erase_link(region, link - 1U);
}

/* Whether the container has a live process, which may have untracked exports open or open them. */
static int anyone_lives(const struct usage_file *usage)
{
    uint32_t end = __atomic_load_n(&usage->high_water, __ATOMIC_SEQ_CST);

    for (unsigned slot = 0; slot < end && slot < REGION_SLOTS; slot++)
        if (__atomic_load_n(&usage->slots[slot].pid, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&usage->slots[slot].state, __ATOMIC_ACQUIRE) != SLOT_DEAD)
            return 1;
    return 0;
}

static int is_carried(uint64_t word, struct fd_marker *marker)
{
    return (word & LINK_CARRIED) && fd_marker_is_open(marker, word & LINK_HASH);
}

static int is_imported(const struct region *region, uint64_t word)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++) {
        uint64_t other = read_word(region, place);

        if (shared_memory_same_key(word, other) && (other & LINK_IMPORT))
            return 1;
    }
    return 0;
}

/* Whether a process has a freed export open, or may open it. An importer that exports it in turn
 * ends its import only after that: so imports are looked for first. */
static int is_held(const struct region *region, uint64_t word, struct fd_marker *marker)
{
    return ((word & LINK_UNTRACKED) && anyone_lives(region->usage)) || is_imported(region, word) ||
           is_carried(word, marker);
}

/* End an export that no other thread or process is ending: 1: its entry is gone, 0: it is held. */
static int end_export(const struct region *region, unsigned place, struct fd_marker *marker)
{
    uint64_t *entry = &region->links[place].word;
    uint64_t word = __atomic_or_fetch(entry, LINK_ENDING, __ATOMIC_SEQ_CST);
    uint64_t decided;

    do /* repeated only if it was given out in another way meanwhile */
        decided = is_held(region, word, marker) ? (word & ~(uint64_t) LINK_ENDING) | LINK_FREED : 0;
    while (
        !__atomic_compare_exchange_n(entry, &word, decided, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return !decided;
}

int shared_memory_end_export(struct region *region, link_t link)
{
    struct fd_marker marker;
    int gone;

    if (!link)
        return 1;
    fd_marker_begin(&marker, region->usage, 0);
    gone = end_export(region, link - 1U, &marker);
    fd_marker_end(&marker);
    if (!gone)
        __atomic_add_fetch(&region->shared_memory_freed, 1, __ATOMIC_SEQ_CST);
    return gone;
}

int shared_memory_is_early(void)
{
    return fd_marker_is_early();
}

/* Remove the entry at *place* if it is this process's, freed, and no process has it open. */
static uint64_t collect_link(struct region *region, unsigned place, unsigned device,
                             struct fd_marker *marker)
{
    uint64_t word = read_word(region, place);
    uint64_t kind = word & (LINK_EXPORT | LINK_FREED | LINK_ENDING);
    uint64_t bytes;

    if (kind != (LINK_EXPORT | LINK_FREED) || !belongs_to(word, (unsigned) region->slot) ||
        device_of(word) != device)
        return 0;
    /* Of several threads, the one that sets the mark decides. */
    if (!__atomic_compare_exchange_n(&region->links[place].word, &word, word | LINK_ENDING, 0,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    bytes = __atomic_load_n(&region->links[place].bytes, __ATOMIC_RELAXED);
    if (!end_export(region, place, marker))
        return 0;
    __atomic_sub_fetch(&region->shared_memory_freed, 1, __ATOMIC_SEQ_CST);
    return bytes;
}

uint64_t shared_memory_collect(struct region *region, unsigned device, int early)
{
    struct fd_marker marker;
    uint64_t bytes = 0;
    unsigned end;

    if (likely(!__atomic_load_n(&region->shared_memory_freed, __ATOMIC_RELAXED)))
        return 0;
    end = count_links(region);
    fd_marker_begin(&marker, region->usage, early);
    for (unsigned place = 0; place < end; place++)
        bytes += collect_link(region, place, device, &marker);
    fd_marker_end(&marker);
    return bytes;
}

/* Whether an export matches *import* and stays charged. */
static int find_export(const struct region *region, uint64_t import)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (shared_memory_same_key(word, import) && (word & LINK_EXPORT) && !(word & LINK_ENDING))
            return 1;
    }
    return 0;
}

link_t shared_memory_import(struct region *region, uint64_t key, int *paid)
{
    uint64_t word = word_of(region, key, 0, LINK_IMPORT);
    link_t link = write_link(region, word, 0);

    *paid = link && find_export(region, word);
    return link;
}

/* Whether *descriptor* carries the export at *place*, which stays while the descriptor is open. */
static int is_carried_by(const struct region *region, unsigned place, int descriptor,
                         struct shared_memory_match *match, struct fd_marker *marker)
{
    uint64_t word = read_word(region, place);

    if (!(word & LINK_EXPORT) || !(word & LINK_CARRIED) ||
        !fd_marker_is(marker, descriptor, word & LINK_HASH))
        return 0;
    match->key = word & LINK_HASH;
    match->device = device_of(word);
    match->bytes = __atomic_load_n(&region->links[place].bytes, __ATOMIC_RELAXED);
    return 1;
}

int shared_memory_match(struct region *region, int descriptor, struct shared_memory_match *match)
{
    unsigned end = count_links(region);
    struct fd_marker marker;
    int found = 0;

    fd_marker_begin(&marker, region->usage, 0);
    for (unsigned place = 0; place < end && !found; place++)
        found = is_carried_by(region, place, descriptor, match, &marker);
    fd_marker_end(&marker);
    return found;
}

void shared_memory_end_import(struct region *region, link_t link)
{
    if (link)
        erase_link(region, link - 1U);
}

void shared_memory_close_imports(const struct region *region, unsigned slot)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (belongs_to(word, slot) && !(word & LINK_EXPORT))
            erase_link(region, place);
    }
}

/* The bytes of a dead slot's export that stay charged. Usually nothing has changed since the last
 * poll: then the entry is not marked, so that no import misses it meanwhile. */
static uint64_t settle_orphan(const struct region *region, unsigned place, uint64_t word,
                              struct fd_marker *marker)
{
    if ((!(word & LINK_FREED) || (word & LINK_ENDING) || !is_held(region, word, marker)) &&
        end_export(region, place, marker))
        return 0;
    return __atomic_load_n(&region->links[place].bytes, __ATOMIC_RELAXED);
}

uint64_t shared_memory_orphaned(struct region *region, unsigned slot, unsigned device, int early)
{
    unsigned end = count_links(region);
    struct fd_marker marker;
    uint64_t bytes = 0;

    fd_marker_begin(&marker, region->usage, early);
    for (unsigned place = 0; place < end; place++) {
        uint64_t word = read_word(region, place);

        if (belongs_to(word, slot) && (word & LINK_EXPORT) && device_of(word) == device)
            bytes += settle_orphan(region, place, word, &marker);
    }
    fd_marker_end(&marker);
    return bytes;
}

void shared_memory_forget(const struct region *region, unsigned slot)
{
    unsigned end = count_links(region);

    for (unsigned place = 0; place < end; place++)
        if (belongs_to(read_word(region, place), slot))
            erase_link(region, place);
}
