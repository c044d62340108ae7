/* SPDX-License-Identifier: Apache-2.0 */
/* heap.c -- allocator of device addresses; the bytes are in a sparse file, punched out when freed.
 */
#include "heap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

#define SPAN_FACTOR 4
#define SLAB_MARK   ((uintptr_t) 1)

struct heap_run {
    struct allocation allocation;
    uint64_t first;
    uint64_t count;
};

struct heap_slab {
    struct heap_slab *next, *previous; /* of the same class, with room */
    uint64_t block;
    enum heap_group group;
    uint32_t class;
    uint32_t object_units;
    uint32_t capacity;
    uint32_t used;
    uint32_t fresh;      /* objects from here on were never used */
    uint32_t first_free; /* counted from 1; 0: none */
    struct allocation objects[];
};

/* Classes are 1, 2, 3, 4, 6, 8, 12... units; even numbers are the powers of two. */
static unsigned int class_of(uint64_t units)
{
    unsigned int power = units <= 1 ? 0 : 64 - (unsigned int) __builtin_clzll(units - 1);

    if (power >= 2 && units <= UINT64_C(3) << (power - 2))
        return 2 * power - 1;
    return 2 * power;
}

static uint32_t class_units(unsigned int class)
{
    unsigned int power = (class + 1) / 2;

    return class % 2 ? UINT32_C(3) << (power - 2) : UINT32_C(1) << power;
}

/* An unnamed file (O_TMPFILE), deleted with its process, if the file system supports it. */
static int open_bytes(struct heap *heap, const char *path)
{
    char folder[PATH_MAX];
    char *slash;
    struct stat status;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (!slash)
        return -EINVAL;
    *slash = '\0';
    if (stat(folder, &status))
        return -errno;
    heap->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, status.st_mode & S_IWOTH ? 0666 : 0600);
    if (heap->fd >= 0 && status.st_mode & S_IWOTH)
        (void) !fchmod(heap->fd, 0666); /* despite the umask; only an import needs it */
    if (heap->fd < 0) {
        heap->fd = machine_open_file(path, O_RDWR);
        heap->has_name = true;
    }
    if (heap->fd < 0 || fstat(heap->fd, &status))
        return -errno;
    heap->file_device = status.st_dev;
    heap->file_inode = status.st_ino;
    return 0;
}

static void *map_range(uint64_t size, int protection, int flags, int fd)
{
    void *range = mmap(NULL, size + HEAP_BLOCK, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t start = ((uint64_t) range + HEAP_BLOCK - 1) & ~(HEAP_BLOCK - 1);

    if (range == MAP_FAILED || fd < 0)
        return range == MAP_FAILED ? range : (void *) start;
    return mmap((void *) start, size, protection, flags | MAP_FIXED, fd, 0);
}

int heap_open(struct heap *heap, const char *path, uint64_t memory)
{
    uint64_t span = (memory * SPAN_FACTOR + HEAP_BLOCK - 1) & ~(HEAP_BLOCK - 1);
    int result = open_bytes(heap, path);
    void *bytes, *base;

    if (result)
        return result;
    if (ftruncate(heap->fd, (off_t) span))
        return -errno;
    bytes = map_range(span, PROT_READ | PROT_WRITE, MAP_SHARED, heap->fd);
    base = map_range(span, PROT_NONE, 0, -1);
    heap->blocks = span / HEAP_BLOCK;
    heap->table = mmap(NULL, heap->blocks * sizeof(*heap->table), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED || base == MAP_FAILED || heap->table == MAP_FAILED)
        return -errno;
    madvise(bytes, span, MADV_DONTFORK); /* else a child would keep the bytes of a dead parent */
    pthread_mutex_init(&heap->lock, NULL);
    heap->bytes = bytes;
    heap->base = (uint64_t) base;
    heap->span = span;
    return 0;
}

static uint64_t length_of_run(const struct heap *heap, uint64_t block)
{
    uintptr_t entry = heap->table[block];

    if (!entry)
        return 0;
    if (entry & SLAB_MARK)
        return 1;
    return ((struct heap_run *) entry)->first + ((struct heap_run *) entry)->count - block;
}

/* The lowest run of free blocks; heap->blocks if there is none. */
static uint64_t find_blocks(const struct heap *heap, uint64_t count)
{
    uint64_t start = heap->low;

    while (start + count <= heap->blocks) {
        uint64_t end = start;
        uint64_t used = 0;

        if (start >= heap->high)
            return start;
        while (end < start + count && !(used = length_of_run(heap, end)))
            end++;
        if (end == start + count)
            return start;
        start = end + used;
    }
    return heap->blocks;
}

static void set_blocks(struct heap *heap, uint64_t first, uint64_t count, uintptr_t entry)
{
    for (uint64_t block = first; block < first + count; block++)
        heap->table[block] = entry;
    if (entry) {
        if (heap->high < first + count)
            heap->high = first + count;
        if (heap->low == first)
            heap->low = first + count;
    } else if (heap->low > first) {
        heap->low = first;
    }
}

static void punch(const struct heap *heap, uint64_t first, uint64_t count)
{
    madvise(heap->bytes + first * HEAP_BLOCK, count * HEAP_BLOCK, MADV_REMOVE);
}

static struct allocation *take_run(struct heap *heap, uint64_t size)
{
    uint64_t count = (size + HEAP_BLOCK - 1) / HEAP_BLOCK;
    uint64_t first = find_blocks(heap, count);
    struct heap_run *run = first < heap->blocks ? calloc(1, sizeof(*run)) : NULL;

    if (!run)
        return NULL;
    run->first = first;
    run->count = count;
    run->allocation.base = heap->base + first * HEAP_BLOCK;
    run->allocation.bytes = heap->bytes + first * HEAP_BLOCK;
    set_blocks(heap, first, count, (uintptr_t) run);
    return &run->allocation;
}

static void link_slab(struct heap *heap, struct heap_slab *slab)
{
    struct heap_slab **first = &heap->partial[slab->group][slab->class];

    slab->previous = NULL;
    slab->next = *first;
    if (slab->next)
        slab->next->previous = slab;
    *first = slab;
}

static void unlink_slab(struct heap *heap, struct heap_slab *slab)
{
    if (slab->next)
        slab->next->previous = slab->previous;
    if (slab->previous)
        slab->previous->next = slab->next;
    else
        heap->partial[slab->group][slab->class] = slab->next;
}

static struct heap_slab *make_slab(struct heap *heap, unsigned int class, enum heap_group group)
{
    uint32_t units = class_units(class);
    uint32_t capacity = (uint32_t) (HEAP_BLOCK / HEAP_UNIT / units);
    uint64_t block = find_blocks(heap, 1);
    struct heap_slab *slab;

    if (block == heap->blocks)
        return NULL;
    slab = calloc(1, sizeof(*slab) + capacity * sizeof(slab->objects[0]));
    if (!slab)
        return NULL;
    slab->block = block;
    slab->group = group;
    slab->class = class;
    slab->object_units = units;
    slab->capacity = capacity;
    set_blocks(heap, block, 1, (uintptr_t) slab | SLAB_MARK);
    link_slab(heap, slab);
    return slab;
}

static unsigned int class_of_size(uint64_t size)
{
    return class_of((size + HEAP_UNIT - 1) / HEAP_UNIT);
}

static struct allocation *take_object(struct heap *heap, uint64_t size, enum heap_group group)
{
    unsigned int class = class_of_size(size);
    struct heap_slab *slab = heap->partial[group][class];
    struct allocation *object;
    uint64_t offset;
    uint32_t index;

    if (!slab)
        slab = make_slab(heap, class, group);
    if (!slab)
        return NULL;
    if (slab->first_free) {
        index = slab->first_free - 1;
        slab->first_free = slab->objects[index].next_free;
    } else {
        index = slab->fresh++;
    }
    object = &slab->objects[index];
    offset = slab->block * HEAP_BLOCK + (uint64_t) index * slab->object_units * HEAP_UNIT;
    *object = (struct allocation) {.base = heap->base + offset, .bytes = heap->bytes + offset};
    if (++slab->used == slab->capacity)
        unlink_slab(heap, slab);
    return object;
}

bool heap_needs_block(const struct heap *heap, uint64_t size, enum heap_group group)
{
    return size < HEAP_LARGE && !heap->partial[group][class_of_size(size)];
}

struct allocation *heap_allocate(struct heap *heap, uint64_t size, enum heap_group group)
{
    struct allocation *allocation =
        size >= HEAP_LARGE ? take_run(heap, size) : take_object(heap, size, group);

    if (allocation) {
        allocation->size = size;
        allocation->is_live = true;
    }
    return allocation;
}

/* Keep the last slab with room, so that allocating and freeing one object is cheap; but not where
 * blocks are charged. */
static bool is_to_stay(const struct heap_slab *slab)
{
    return slab->used || (slab->group == HEAP_PLAIN && !slab->next && !slab->previous);
}

static bool give_object(struct heap *heap, struct heap_slab *slab, struct allocation *object)
{
    uint32_t index = (uint32_t) (object - slab->objects);
    bool is_counted = slab->group == HEAP_COUNTED;

    object->is_live = false;
    object->next_free = slab->first_free;
    slab->first_free = index + 1;
    if (slab->used-- == slab->capacity)
        link_slab(heap, slab);
    if (is_to_stay(slab))
        return false;
    unlink_slab(heap, slab);
    punch(heap, slab->block, 1);
    set_blocks(heap, slab->block, 1, 0);
    free(slab);
    return is_counted;
}

bool heap_free(struct heap *heap, struct allocation *allocation)
{
    uintptr_t entry = heap->table[(allocation->base - heap->base) / HEAP_BLOCK];
    struct heap_run *run = (struct heap_run *) entry;

    if (entry & SLAB_MARK)
        return give_object(heap, (struct heap_slab *) (entry & ~SLAB_MARK), allocation);
    if (allocation->is_touched && !allocation->has_no_bytes)
        punch(heap, run->first, run->count);
    set_blocks(heap, run->first, run->count, 0);
    free(run);
    return false;
}

static struct allocation *object_at(struct heap *heap, struct heap_slab *slab, uint64_t address)
{
    uint64_t offset = address - heap->base - slab->block * HEAP_BLOCK;
    uint64_t index = offset / HEAP_UNIT / slab->object_units;

    return index < slab->capacity && slab->objects[index].is_live ? &slab->objects[index] : NULL;
}

struct allocation *heap_find(struct heap *heap, uint64_t address)
{
    struct allocation *found;
    uintptr_t entry;

    if (!heap_has(heap, address))
        return NULL;
    entry = heap->table[(address - heap->base) / HEAP_BLOCK];
    if (!entry)
        return NULL;
    if (entry & SLAB_MARK)
        found = object_at(heap, (struct heap_slab *) (entry & ~SLAB_MARK), address);
    else
        found = &((struct heap_run *) entry)->allocation;
    return found && address - found->base < found->size ? found : NULL;
}

static void visit_slab(struct heap *heap, struct heap_slab *slab,
                       void (*visit)(struct heap *, struct allocation *, void *), void *data)
{
    uint64_t block = slab->block;

    for (uint32_t i = 0; i < slab->fresh; i++) {
        if (slab->objects[i].is_live)
            visit(heap, &slab->objects[i], data);
        if (heap->table[block] != ((uintptr_t) slab | SLAB_MARK))
            return; /* the last object was freed, and the slab with it */
    }
}

void heap_each(struct heap *heap,
               void (*visit)(struct heap *heap, struct allocation *allocation, void *data),
               void *data)
{
    for (uint64_t block = 0; block < heap->high;) {
        uintptr_t entry = heap->table[block];
        uint64_t length = length_of_run(heap, block);

        if (entry & SLAB_MARK)
            visit_slab(heap, (struct heap_slab *) (entry & ~SLAB_MARK), visit, data);
        else if (entry)
            visit(heap, &((struct heap_run *) entry)->allocation, data);
        block += length ? length : 1;
    }
}

/* The descriptor may have been closed by a program that closes all there are. */
static bool has_file(const struct heap *heap)
{
    struct stat status;

    return fstat(heap->fd, &status) == 0 && status.st_dev == heap->file_device &&
           status.st_ino == heap->file_inode;
}

int heap_name_file(struct heap *heap, const char *path)
{
    char descriptor[64];

    if (heap->has_name)
        return 0;
    if (!has_file(heap))
        return -EBADF;
    snprintf(descriptor, sizeof(descriptor), "/proc/self/fd/%d", heap->fd);
    if (linkat(AT_FDCWD, descriptor, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
        return -errno;
    heap->has_name = true;
    return 0;
}

int heap_show(struct heap *heap, const struct allocation *allocation, bool shown)
{
    uint64_t length = (allocation->size + HEAP_BLOCK - 1) & ~(HEAP_BLOCK - 1);
    uint64_t offset = allocation->base - heap->base;
    void *place;

    if (!shown)
        place = mmap((void *) allocation->base, length, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else if (!has_file(heap))
        return -EBADF;
    else
        place = mmap((void *) allocation->base, length, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, heap->fd, (off_t) offset);
    return place == MAP_FAILED ? -errno : 0;
}
