/* SPDX-License-Identifier: Apache-2.0 */
/* region.c -- opens, checks and maps a region, and owns this process's slot in it.
 *
 * A slot belongs to whoever holds the OFD write lock on its byte. The lock is taken on a
 * descriptor opened for it alone, which is mapped and then closed: the mapping keeps the lock, no
 * close() elsewhere can drop it, exec and death do, and MADV_DONTFORK keeps children out of it.
 * So no pid is ever compared, and kill -9 at any instruction leaves nothing to repair.
 */
#include "region.h"
#include "cleanup.h"
#include "compiler.h"
#include "links.h"
#include "path.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#define REAP_PERIOD_NS UINT64_C(50000000)

#define LOCK_PAGE 4096

_Static_assert(sizeof(struct region_header) == 32, "header");
_Static_assert(sizeof(struct quota_device) == 56, "quota device");
_Static_assert(offsetof(struct quota_limits, devices) == 48, "devices");
_Static_assert(offsetof(struct quota_limits, checksum) == 944, "checksum");
_Static_assert(offsetof(struct quota_file, limits) == 32, "limits");
_Static_assert(offsetof(struct quota_file, extra) == 1936, "extra");
_Static_assert(offsetof(struct quota_file, extra_total) == 133008, "extra total");
_Static_assert(sizeof(struct quota_file) == 133136, "quota");
_Static_assert(sizeof(struct usage_slot) == 64, "slot");
_Static_assert(sizeof(struct usage_compute) == 256, "compute");
_Static_assert(offsetof(struct usage_file, high_water) == 32, "high water");
_Static_assert(offsetof(struct usage_file, scanned_ns) == 40, "scanned");
_Static_assert(offsetof(struct usage_file, refused) == 48, "refused");
_Static_assert(offsetof(struct usage_file, orphaned) == 176, "orphaned");
_Static_assert(offsetof(struct usage_file, slots) == 704, "slots");
_Static_assert(offsetof(struct usage_file, charged) == 66240, "charged");
_Static_assert(offsetof(struct usage_file, unused) == 197312, "unused");
_Static_assert(offsetof(struct usage_file, compute) == 328384, "compute");
_Static_assert(offsetof(struct usage_file, link_end) == 332480, "link end");
_Static_assert(offsetof(struct usage_file, links) == 332544, "links");
_Static_assert(sizeof(struct usage_link) == 16, "link");
_Static_assert(sizeof(struct usage_file) == 463616, "usage");
_Static_assert(sizeof(struct clock_file) == 512, "clock");

#define CLAIM_TRIES 100

/* The lock of this process's slot; descriptor is -1 but for the moment of the claim. */
static struct {
    void *page;
    int descriptor;
} slot_lock = {NULL, -1};

/* Forks of this process. A child that is made in the midst of a claim shares the lock, and would
 * keep the slot taken after our death; so such a claim is made again. */
static struct {
    unsigned begun;
    unsigned over;
} forks;

__attribute__((format(printf, 3, 4))) static enum region_failure
fail(struct region_reason *reason, enum region_failure failure, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason->text, sizeof(reason->text), format, arguments);
    va_end(arguments);
    return failure;
}

static struct flock byte_lock(short type, off_t byte)
{
    return (struct flock) {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* Without O_NONBLOCK a pipe in the place of the file would have us wait for its other end. */
static int open_file(const char *path, int access_mode)
{
    return open(path, access_mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

uint64_t region_checksum(const struct quota_limits *limits)
{
    const unsigned char *byte = (const unsigned char *) limits;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < offsetof(struct quota_limits, checksum); i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static int limits_are_valid(const struct quota_limits *limits)
{
    if (!limits->generation || limits->checksum != region_checksum(limits))
        return 0;
    if (!limits->device_count || limits->device_count > REGION_DEVICES)
        return 0;
    return memchr(limits->driver_release, 0, sizeof(limits->driver_release)) != NULL;
}

int region_limits(const struct quota_file *quota, struct quota_limits *limits)
{
    struct quota_limits copy;

    memset(limits, 0, sizeof(*limits));
    for (unsigned i = 0; i < ARRAY_SIZE(quota->limits); i++) {
        memcpy(&copy, &quota->limits[i], sizeof(copy));
        if (limits_are_valid(&copy) && copy.generation > limits->generation)
            *limits = copy;
    }
    return limits->generation != 0;
}

/* What tells one of the two files: its magic, and its size in the layouts that are known. */
struct kind {
    uint64_t magic;
    size_t size[REGION_LAYOUT + 1];
};

static const struct kind quota_kind = {
    QUOTA_MAGIC, {[1] = offsetof(struct quota_file, extra_total), [2] = sizeof(struct quota_file)}};
static const struct kind usage_kind = {
    USAGE_MAGIC, {[1] = offsetof(struct usage_file, link_end), [2] = sizeof(struct usage_file)}};

static const uint64_t no_extra[REGION_DEVICES];

/* Map *path* after its size, magic and layout were checked; the layout, in *layout*, says how much
 * of it there is. */
static enum region_failure map_file(const char *path, int fd, const struct kind *kind,
                                    int protection, void **mapped, uint32_t *layout,
                                    struct region_reason *reason)
{
    struct stat status;
    struct region_header header;
    size_t size = kind->size[REGION_LAYOUT];

    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return fail(reason, REGION_UNREADABLE, "%s is not a regular file", path);
    if ((size_t) status.st_size < sizeof(header) ||
        pread(fd, &header, sizeof(header), 0) != (ssize_t) sizeof(header))
        return fail(reason, REGION_DAMAGED, "%s is too short (%lld bytes, %zu are needed)", path,
                    (long long) status.st_size, size);
    if (header.magic != kind->magic)
        return fail(reason, REGION_DAMAGED, "%s is not a file of that kind (wrong magic)", path);
    if (header.layout < REGION_LAYOUT_OLD || header.layout > REGION_LAYOUT)
        return fail(reason, REGION_VERSION, "%s has layout %u, this shim knows %u to %u", path,
                    header.layout, REGION_LAYOUT_OLD, REGION_LAYOUT);
    size = kind->size[header.layout];
    if (header.size != size || (size_t) status.st_size < size)
        return fail(reason, REGION_DAMAGED, "%s is too short (%lld bytes, %zu are needed)", path,
                    (long long) status.st_size, size);
    *mapped = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (*mapped == MAP_FAILED)
        return fail(reason, REGION_UNREADABLE, "%s cannot be mapped: %s", path, strerror(errno));
    *layout = header.layout;
    return REGION_OK;
}

static enum region_failure open_quota(struct region *region, int read_only_mount, uint32_t *layout,
                                      struct region_reason *reason)
{
    const char *path = region->quota_path;
    cleanup_close int fd = open_file(path, O_RDONLY);
    enum region_failure failure;
    struct statvfs filesystem;
    struct stat status;

    if (fd < 0)
        return fail(reason, errno == ENOENT ? REGION_MISSING : REGION_UNREADABLE,
                    "no quota: %s: %s", path, strerror(errno));
    if (read_only_mount && (fstatvfs(fd, &filesystem) != 0 || !(filesystem.f_flag & ST_RDONLY)))
        return fail(reason, REGION_WRITABLE, "%s is not on a read-only mount", path);
    if (!read_only_mount && (fstat(fd, &status) != 0 || (status.st_mode & 0222)))
        return fail(reason, REGION_WRITABLE, "%s is writable (mode %o), it must be 0444", path,
                    (unsigned) status.st_mode & 07777);
    failure = map_file(path, fd, &quota_kind, PROT_READ, (void **) &region->quota, layout, reason);
    region->extra_total = failure || *layout < 2 ? no_extra : region->quota->extra_total;
    return failure;
}

static enum region_failure open_usage(struct region *region, uint32_t *layout,
                                      struct region_reason *reason)
{
    const char *path = region->usage_path;
    cleanup_close int fd = open_file(path, O_RDWR);
    enum region_failure failure;

    if (fd < 0)
        return fail(reason, errno == ENOENT ? REGION_MISSING : REGION_UNREADABLE,
                    "no usage file: %s: %s", path, strerror(errno));
    failure = map_file(path, fd, &usage_kind, PROT_READ | PROT_WRITE, (void **) &region->usage,
                       layout, reason);
    region->links = failure || *layout < 2 ? NULL : region->usage->links;
    return failure;
}

enum region_failure region_open_files(struct region *region, int read_only_mount,
                                      struct region_reason *reason)
{
    uint32_t quota_layout = 0;
    uint32_t usage_layout = 0;
    enum region_failure failure = open_quota(region, read_only_mount, &quota_layout, reason);
    struct quota_limits limits = {0};

    region->slot = -1;
    if (failure)
        return failure;
    failure = open_usage(region, &usage_layout, reason);
    if (failure) {
        munmap((void *) region->quota, quota_kind.size[quota_layout]);
        return failure;
    }
    if (memcmp(region->quota->header.region_id, region->usage->header.region_id,
               sizeof(region->quota->header.region_id)) != 0)
        failure = fail(reason, REGION_DAMAGED, "%s and %s do not belong together",
                       region->quota_path, region->usage_path);
    else if (!region_limits(region->quota, &limits))
        failure = fail(reason, REGION_DAMAGED, "%s holds no valid limits (wrong checksum)",
                       region->quota_path);
    region->device_count = limits.device_count;
    if (failure) {
        munmap((void *) region->quota, quota_kind.size[quota_layout]);
        munmap(region->usage, usage_kind.size[usage_layout]);
    }
    return failure;
}

/* The region beside the folder of the library. Its paths are opened again later, from whatever
 * folder the program is in then, so they must be absolute. */
static enum region_failure find_beside(struct region *region, const char *library_path,
                                       struct region_reason *reason)
{
    char library[sizeof(region->quota_path)];
    int result = -ENAMETOOLONG;
    int folder;

    if (strlen(library_path) < sizeof(library)) {
        strcpy(library, library_path);
        result = path_follow(library, sizeof(library));
    }
    if (result == 0 && library[0] != '/') {
        cleanup_free char *real = realpath(library, NULL);

        result = real && strlen(real) < sizeof(library) ? 0 : -ENAMETOOLONG;
        if (result == 0)
            strcpy(library, real);
    }
    if (result != 0)
        return fail(reason, REGION_MISSING, "cannot resolve %s: %s", library_path,
                    strerror(-result));
    folder = (int) (strrchr(library, '/') - library);
    if ((size_t) folder + sizeof("/../region/quota") > sizeof(region->quota_path))
        return fail(reason, REGION_MISSING, "the path of %s is too long", library_path);
    snprintf(region->quota_path, sizeof(region->quota_path), "%.*s/../region/quota", folder,
             library);
    snprintf(region->usage_path, sizeof(region->usage_path), "%.*s/../region/usage", folder,
             library);
    return REGION_OK;
}

enum region_failure region_open(struct region *region, const char *library_path,
                                struct region_reason *reason)
{
    enum region_failure failure;

    if (access("/etc/pyvgpu", F_OK) == 0) {
        strcpy(region->quota_path, "/etc/pyvgpu/quota");
        strcpy(region->usage_path, "/run/pyvgpu/usage");
        return region_open_files(region, 1, reason);
    }
    failure = find_beside(region, library_path, reason);
    return failure ? failure : region_open_files(region, 0, reason);
}

/* Open the file for its locks, once; this process may no longer be able to, the others may. */
static int open_for_locks(const struct region *region, int *fd)
{
    if (*fd < 0)
        *fd = open_file(region->usage_path, O_RDWR);
    return *fd >= 0;
}

static int try_lock_slot(int fd, unsigned slot)
{
    struct flock lock = byte_lock(F_WRLCK, USAGE_LOCK_SLOT + (off_t) slot);

    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static void unlock_slot(int fd, unsigned slot)
{
    struct flock lock = byte_lock(F_UNLCK, USAGE_LOCK_SLOT + (off_t) slot);

    fcntl(fd, F_OFD_SETLK, &lock);
}

static int slot_is_marked(const struct usage_file *usage, unsigned slot)
{
    return __atomic_load_n(&usage->slots[slot].pid, __ATOMIC_RELAXED) != 0;
}

static int slot_is_dead(const struct usage_file *usage, unsigned slot)
{
    return __atomic_load_n(&usage->slots[slot].state, __ATOMIC_RELAXED) == SLOT_DEAD;
}

/* What follows is only for whoever holds the slot's lock, so its owner is dead or us. Each may be
 * cut short by kill -9 and is done again, to the same end, by whoever reaps next. */

static void set_charged(struct usage_file *usage, unsigned device, unsigned slot, uint64_t bytes)
{
    if (usage->charged[device][slot] != bytes)
        __atomic_store_n(&usage->charged[device][slot], bytes, __ATOMIC_SEQ_CST);
}

/* Zero what a slot held. */
static void clear_slot(const struct region *region, unsigned slot)
{
    struct usage_slot *cleared = &region->usage->slots[slot];

    links_forget(region, slot);
    for (unsigned device = 0; device < region->device_count; device++)
        set_charged(region->usage, device, slot, 0);
    __atomic_store_n(&cleared->pid, 0, __ATOMIC_RELEASE);
    memset(cleared, 0, sizeof(*cleared));
}

/* Zero what a slot held but what others have open of it: 1 if that is nothing. */
static int settle_slot(struct region *region, unsigned slot)
{
    struct usage_file *usage = region->usage;
    int orphaned = 0;

    for (unsigned device = 0; device < region->device_count; device++) {
        uint64_t bytes = usage->charged[device][slot] & LEDGER_BYTES;
        uint64_t kept = bytes ? links_orphaned(region, slot, device) : 0;

        set_charged(usage, device, slot, kept < bytes ? kept : bytes);
        orphaned |= kept != 0;
    }
    if (!orphaned)
        clear_slot(region, slot);
    return !orphaned;
}

/* The slot's owner is dead: nothing is open in it, and it takes nothing any more. */
static void bury_slot(struct region *region, unsigned slot)
{
    links_close_imports(region, slot);
    __atomic_store_n(&region->usage->slots[slot].state, SLOT_DEAD, __ATOMIC_SEQ_CST);
}

/* The slot is new, or it is no longer ours: its words are zero, and no thread is changing them. */
static void forget_words(struct region *region)
{
    memset(region->words, 0, sizeof(region->words));
    region->words_locked = 0;
    region->links_freed = 0;
}

/* Nobody has the highest slots any more: sums need not go over them. A slot is let go only while
 * its lock is ours, so whoever claims it later raises the mark again before it charges anything,
 * and of two such charges the later one has seen the earlier (ledger.h) as ever. */
static void lower_high_water(struct region *region, int *fd)
{
    uint32_t *mark = &region->usage->high_water;
    uint32_t seen = __atomic_load_n(mark, __ATOMIC_SEQ_CST);
    int lowered = 1;

    while (lowered && seen > 0 && seen <= REGION_SLOTS) {
        unsigned slot = seen - 1;

        if ((int) slot == region->slot || slot_is_marked(region->usage, slot) ||
            !open_for_locks(region, fd) || !try_lock_slot(*fd, slot))
            break;
        clear_slot(region, slot); /* its owner may have died before it was marked */
        lowered =
            __atomic_compare_exchange_n(mark, &seen, slot, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        seen = slot;
        unlock_slot(*fd, slot);
    }
}

/* Bury the dead among the slots that are marked, or *settle* those that are buried. Returns how
 * many there were. */
static unsigned reap_slots(struct region *region, int *fd, int settle)
{
    struct usage_file *usage = region->usage;
    uint32_t end = __atomic_load_n(&usage->high_water, __ATOMIC_ACQUIRE);
    unsigned dead = 0;

    for (unsigned slot = 0; slot < end && slot < REGION_SLOTS; slot++) {
        if ((int) slot == region->slot || !slot_is_marked(usage, slot) ||
            (settle && !slot_is_dead(usage, slot)))
            continue;
        if (!open_for_locks(region, fd))
            break;
        if (!try_lock_slot(*fd, slot))
            continue;
        if (settle)
            settle_slot(region, slot);
        else
            bury_slot(region, slot);
        dead++;
        unlock_slot(*fd, slot);
    }
    return dead;
}

static void reap(struct region *region)
{
    int saved = errno; /* a program may look at it after a call that succeeded */
    cleanup_close int fd = -1;
    int cancel;

    /* open() would end a cancelled thread here, with its charge undecided for ever. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (reap_slots(region, &fd, 0))
        reap_slots(region, &fd, 1);
    lower_high_water(region, &fd);
    cleanup_close_fd(&fd);
    fd = -1;
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}

/* Lock the first free slot on *fd*: those that look free first, then any whose owner is dead and
 * of which nobody has anything open. *orphans* is how many were passed over for that. */
static int lock_free_slot(struct region *region, int fd, unsigned *orphans)
{
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
            if (pass == 0 && slot_is_marked(region->usage, slot))
                continue;
            if (!try_lock_slot(fd, slot)) {
                if (errno != EAGAIN && errno != EACCES)
                    return -1;
                continue;
            }
            bury_slot(region, slot);
            if (settle_slot(region, slot))
                return (int) slot;
            unlock_slot(fd, slot);
            ++*orphans;
        }
    }
    errno = ENOSPC;
    return -1;
}

/* Whether the supervisor of this quota still lives; only asked where it must. */
static int supervisor_lives(const struct region *region)
{
    cleanup_close int fd = open_file(region->quota_path, O_RDONLY);
    struct flock lock = byte_lock(F_WRLCK, QUOTA_LOCK_SUPERVISOR);

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void raise_high_water(struct usage_file *usage, unsigned slot)
{
    uint32_t seen = __atomic_load_n(&usage->high_water, __ATOMIC_SEQ_CST);

    while (seen <= slot && !__atomic_compare_exchange_n(&usage->high_water, &seen, slot + 1, 0,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static void describe_slot(struct usage_slot *slot)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    slot->started_ns = (uint64_t) now.tv_sec * UINT64_C(1000000000) + (uint64_t) now.tv_nsec;
    prctl(PR_GET_NAME, slot->name, 0, 0, 0);
    __atomic_store_n(&slot->pid, (uint32_t) getpid(), __ATOMIC_RELEASE);
}

/* Lock a slot by a mapping that is this process's alone, unless somebody forks meanwhile. */
static enum region_failure lock_slot(struct region *region, struct region_reason *reason, int *slot)
{
    cleanup_close int fd = open_file(region->usage_path, O_RDWR);
    unsigned orphans = 0;

    if (fd < 0)
        return fail(reason, REGION_UNREADABLE, "%s: %s", region->usage_path, strerror(errno));
    slot_lock.descriptor = fd;
    *slot = lock_free_slot(region, fd, &orphans);
    if (*slot >= 0)
        slot_lock.page = mmap(NULL, LOCK_PAGE, PROT_READ, MAP_SHARED, fd, 0);
    slot_lock.descriptor = -1;
    if (*slot < 0 && errno == ENOSPC)
        return fail(reason, REGION_FULL,
                    "all %d process slots of this quota are taken, %u of them by memory that ended "
                    "processes shared and others may still have open",
                    REGION_SLOTS, orphans);
    if (*slot < 0)
        return fail(reason, REGION_UNREADABLE, "cannot lock %s: %s", region->usage_path,
                    strerror(errno));
    if (slot_lock.page == MAP_FAILED || madvise(slot_lock.page, LOCK_PAGE, MADV_DONTFORK) != 0) {
        fail(reason, REGION_UNREADABLE, "cannot keep a lock on %s: %s", region->usage_path,
             strerror(errno));
        region_release(region);
        return REGION_UNREADABLE;
    }
    return REGION_OK;
}

static enum region_failure lock_slot_alone(struct region *region, struct region_reason *reason,
                                           int *slot)
{
    for (int tries = 1;; tries++) {
        unsigned begun = __atomic_load_n(&forks.begun, __ATOMIC_SEQ_CST);
        int quiet = __atomic_load_n(&forks.over, __ATOMIC_SEQ_CST) == begun;
        enum region_failure failure = lock_slot(region, reason, slot);

        quiet = quiet && __atomic_load_n(&forks.begun, __ATOMIC_SEQ_CST) == begun;
        if (failure || quiet || tries == CLAIM_TRIES)
            return failure;
        region_release(region);
        sched_yield();
    }
}

enum region_failure region_claim(struct region *region, uint32_t flags,
                                 struct region_reason *reason)
{
    enum region_failure failure;
    int slot = -1;

    reap(region); /* so that low slots are used again and sums stay short */
    failure = lock_slot_alone(region, reason, &slot);
    if (failure)
        return failure;
    raise_high_water(region->usage, (unsigned) slot);
    forget_words(region);
    region->slot = slot;
    /* After the lock, so that who finds the supervisor dead and no slot taken is right for ever. */
    if ((flags & QUOTA_SUPERVISED) && !supervisor_lives(region)) {
        region_release(region);
        return fail(reason, REGION_CLOSED, "the `pyvgpu run` that gave this quota has ended");
    }
    describe_slot(&region->usage->slots[slot]);
    return REGION_OK;
}

void region_release(struct region *region)
{
    unsigned slot = (unsigned) region->slot;

    region->slot = -1;
    if (slot < REGION_SLOTS) {
        bury_slot(region, slot);
        settle_slot(region, slot);
    }
    if (slot_lock.page && slot_lock.page != MAP_FAILED)
        munmap(slot_lock.page, LOCK_PAGE);
    slot_lock.page = NULL;
}

void region_reap(struct region *region)
{
    uint64_t *scanned = &region->usage->scanned_ns;
    uint64_t last = __atomic_load_n(scanned, __ATOMIC_RELAXED);
    uint64_t now = coarse_now_ns();

    /* A time ahead of ours was written in another boot or by a broken tenant: look. */
    if (likely(now - last < REAP_PERIOD_NS))
        return;
    if (__atomic_compare_exchange_n(scanned, &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        reap(region);
}

int region_reap_before_refusal(struct region *region)
{
    static uint64_t last; /* of this process; a forked child has no slot and refuses nothing */
    uint64_t now = coarse_now_ns();

    if (likely(now - __atomic_load_n(&last, __ATOMIC_RELAXED) < REAP_PERIOD_NS))
        return 0;
    __atomic_store_n(&last, now, __ATOMIC_RELAXED);
    reap(region);
    return 1;
}

void region_before_fork(void)
{
    __atomic_add_fetch(&forks.begun, 1, __ATOMIC_SEQ_CST);
}

void region_after_fork_in_parent(void)
{
    __atomic_add_fetch(&forks.over, 1, __ATOMIC_SEQ_CST);
}

void region_after_fork(struct region *region)
{
    region->slot = -1;
    forget_words(region);
    forks.over = forks.begun;
    slot_lock.page = NULL; /* MADV_DONTFORK: it is not mapped here */
    if (slot_lock.descriptor >= 0)
        close(slot_lock.descriptor); /* another thread was about to claim */
    slot_lock.descriptor = -1;
}
