/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c -- claims, releases and reaps slots; see slots.h. */
#include "core/slots.h"
#include "core/cleanup.h"
#include "core/compiler.h"
#include "core/shared_memory.h"
#include "core/pid.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define REAP_PERIOD_NS UINT64_C(50000000)
#define LOCK_PAGE      4096
#define CLAIM_TRIES    100
#define FEW_SLOTS      16 /* scanning so many is cheap */

/* The lock of this process's slot; descriptor is -1 except during the claim. A forked child drops
 * its page unless it has to keep it. */
static struct {
    void *page;
    int kept_with_children;
    int descriptor;
} slot_lock = {.descriptor = -1};

/* Forks of this process. A child forked during a claim may inherit the lock through a descriptor or
 * mapping that it does not know of, and would keep the slot taken after our death, though it has no
 * descriptors of the driver; so such a claim is repeated. */
static struct {
    unsigned begun;
    unsigned over;
} forks;

static struct flock byte_lock(short type, off_t byte)
{
    return (struct flock) {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* Open the file for its locks, once. This process may no longer be able to; others may. */
static int open_for_locks(const struct region *region, int *fd)
{
    if (*fd < 0)
        *fd = region_open_file(region->usage_path, O_RDWR);
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

/* The callers of the following functions hold the slot's lock, so its owner is dead or us. kill -9
 * may interrupt each of them; the process that reaps next repeats it, with the same result. */

static void set_charged(struct usage_file *usage, unsigned device, unsigned slot, uint64_t bytes)
{
    if (usage->charged[device][slot] != bytes)
        __atomic_store_n(&usage->charged[device][slot], bytes, __ATOMIC_SEQ_CST);
}

/* Zero what a slot held. */
static void clear_slot(const struct region *region, unsigned slot)
{
    struct usage_slot *cleared = &region->usage->slots[slot];

    shared_memory_forget(region, slot);
    for (unsigned device = 0; device < region->device_count; device++)
        set_charged(region->usage, device, slot, 0);
    __atomic_store_n(&cleared->pid, 0, __ATOMIC_RELEASE);
    memset(cleared, 0, sizeof(*cleared));
}

/* Clear what a slot held, except memory that others have open: 1 if there is none. */
static int settle_slot(struct region *region, unsigned slot, int early)
{
    struct usage_file *usage = region->usage;
    int orphaned = 0;

    for (unsigned device = 0; device < region->device_count; device++) {
        uint64_t bytes = region_held(region, device, slot);
        uint64_t kept = bytes ? shared_memory_orphaned(region, slot, device, early) : 0;

        set_charged(usage, device, slot, kept < bytes ? kept : bytes);
        orphaned |= kept != 0;
    }
    if (!orphaned)
        clear_slot(region, slot);
    return !orphaned;
}

/* No process keeps the slot: remove its imports, and mark it dead, since it opens nothing more. */
static void bury_slot(struct region *region, unsigned slot)
{
    shared_memory_close_imports(region, slot);
    __atomic_store_n(&region->usage->slots[slot].state, SLOT_DEAD, __ATOMIC_SEQ_CST);
}

/* The slot is new, or no longer ours: its words are zero, and no thread is changing them. */
static void forget_words(struct region *region)
{
    memset(region->words, 0, sizeof(region->words));
    region->words_locked = 0;
    region->shared_memory_freed = 0;
}

/* Lower the high-water mark below the highest slots that are unused, so that sums need not cover
 * them. It is lowered below a slot only while we hold that slot's lock, so a process that claims
 * the slot later raises the mark again before it charges anything, and of two such charges the
 * later one has seen the earlier (ledger.h) as always. */
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
        clear_slot(region, slot); /* its owner may have died before it marked the slot */
        lowered =
            __atomic_compare_exchange_n(mark, &seen, slot, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        seen = slot;
        unlock_slot(*fd, slot);
    }
}

enum reap { REAP_BURY, REAP_SETTLE, REAP_SETTLE_EARLY };

/* Bury the dead ones among the marked slots, or settle those already buried. Returns their
 * number. */
static unsigned reap_slots(struct region *region, int *fd, enum reap what)
{
    struct usage_file *usage = region->usage;
    uint32_t end = __atomic_load_n(&usage->high_water, __ATOMIC_ACQUIRE);
    unsigned dead = 0;

    for (unsigned slot = 0; slot < end && slot < REGION_SLOTS; slot++) {
        if ((int) slot == region->slot || !slot_is_marked(usage, slot) ||
            (what != REAP_BURY && !slot_is_dead(usage, slot)))
            continue;
        if (!open_for_locks(region, fd))
            break;
        if (!try_lock_slot(*fd, slot))
            continue;
        if (what == REAP_BURY)
            bury_slot(region, slot);
        else
            settle_slot(region, slot, what == REAP_SETTLE_EARLY);
        dead++;
        unlock_slot(*fd, slot);
    }
    return dead;
}

static void reap(struct region *region, enum reap settle)
{
    int saved = errno; /* a program may read it after a call that succeeded */
    cleanup_close int fd = -1;
    int cancel;

    /* open() is a cancellation point, where a thread would leave its charge undecided for ever. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (reap_slots(region, &fd, REAP_BURY))
        reap_slots(region, &fd, settle);
    lower_high_water(region, &fd);
    cleanup_close_fd(&fd);
    fd = -1;
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}

/* Lock the first free slot on *fd*: first those that look free, then any whose owner is dead and
 * whose memory no process has open. *orphans* says whether one was skipped for such memory. */
static int lock_free_slot(struct region *region, int fd, int *orphans)
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
            if (settle_slot(region, slot, 0))
                return (int) slot;
            unlock_slot(fd, slot);
            *orphans = 1;
        }
    }
    errno = ENOSPC;
    return -1;
}

/* Whether the supervisor of this quota still lives; called only for QUOTA_SUPERVISED. */
static int supervisor_lives(const struct region *region)
{
    cleanup_close int fd = region_open_file(region->quota_path, O_RDONLY);
    struct flock lock = byte_lock(F_WRLCK, QUOTA_LOCK_SUPERVISOR);

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void describe_slot(struct usage_slot *slot)
{
    slot->started_ns = clock_now_ns(CLOCK_REALTIME);
    prctl(PR_GET_NAME, slot->name, 0, 0, 0);
    slot->pid_namespace = pid_namespace();
    __atomic_store_n(&slot->pid, (uint32_t) getpid(), __ATOMIC_RELEASE);
}

/* Lock a slot, and keep the lock by a mapping. */
static enum region_failure lock_slot(struct region *region, struct region_reason *reason, int *slot)
{
    cleanup_close int fd = region_open_file(region->usage_path, O_RDWR);
    void *page = MAP_FAILED;
    int orphans = 0;

    if (fd < 0)
        return region_fail(reason, REGION_UNREADABLE, "%s: %s", region->usage_path,
                           strerror(errno));
    slot_lock.descriptor = fd;
    *slot = lock_free_slot(region, fd, &orphans);
    if (*slot >= 0)
        page = mmap(NULL, LOCK_PAGE, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        slot_lock.page = page;
    slot_lock.descriptor = -1;
    if (*slot < 0 && errno == ENOSPC)
        return region_fail(reason, REGION_FULL, "all %d process slots of this quota are taken%s",
                           REGION_SLOTS,
                           orphans ? ", some by memory that ended processes shared and others "
                                     "still have open"
                                   : "");
    if (*slot < 0)
        return region_fail(reason, REGION_UNREADABLE, "cannot lock %s: %s", region->usage_path,
                           strerror(errno));
    if (page == MAP_FAILED)
        return region_fail(reason, REGION_UNREADABLE, "cannot keep a lock on %s: %s",
                           region->usage_path, strerror(errno));
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
        slots_release(region);
        sched_yield();
    }
}

int slots_are_closed(const struct region *region, uint32_t flags)
{
    return (flags & QUOTA_SUPERVISED) && !supervisor_lives(region);
}

enum region_failure slots_claim(struct region *region, uint32_t flags, struct region_reason *reason)
{
    enum region_failure failure;
    int slot = -1;

    /* Reap, so that low slots are reused and sums stay short; but when many processes start
     * together, not each of them scans all the others. */
    if (__atomic_load_n(&region->usage->high_water, __ATOMIC_RELAXED) <= FEW_SLOTS)
        reap(region, REAP_SETTLE);
    else
        slots_reap(region);
    failure = lock_slot_alone(region, reason, &slot);
    if (failure)
        return failure;
    raise_mark(&region->usage->high_water, (unsigned) slot + 1);
    forget_words(region);
    region->slot = slot;
    /* After the lock: so once the supervisor is dead and no slot is taken, none ever will be. */
    if (slots_are_closed(region, flags)) {
        slots_release(region);
        return region_fail(reason, REGION_CLOSED,
                           "the `pyvgpu run` that gave this quota has ended");
    }
    describe_slot(&region->usage->slots[slot]);
    return REGION_OK;
}

static void drop_page(void)
{
    slot_lock.kept_with_children = 0;
    if (slot_lock.page)
        munmap(slot_lock.page, LOCK_PAGE);
    slot_lock.page = NULL;
}

void slots_release(struct region *region)
{
    unsigned slot = (unsigned) region->slot;

    region->slot = -1;
    if (slot < REGION_SLOTS) {
        bury_slot(region, slot);
        settle_slot(region, slot, 0);
    }
    drop_page();
}

void slots_keep_with_children(void)
{
    __atomic_store_n(&slot_lock.kept_with_children, 1, __ATOMIC_SEQ_CST);
}

void slots_reap(struct region *region)
{
    uint64_t *scanned = &region->usage->scanned_ns;
    uint64_t last = __atomic_load_n(scanned, __ATOMIC_RELAXED);
    uint64_t now = coarse_now_ns();

    /* A time ahead of ours was written in another boot or by a broken tenant: scan. */
    if (likely(now - last < REAP_PERIOD_NS))
        return;
    if (__atomic_compare_exchange_n(scanned, &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        reap(region, shared_memory_is_early() ? REAP_SETTLE_EARLY : REAP_SETTLE);
}

int slots_reap_before_refusal(struct region *region)
{
    static uint64_t last; /* of this process; a forked child has no slot and refuses nothing */
    uint64_t now = coarse_now_ns();

    if (likely(now - __atomic_load_n(&last, __ATOMIC_RELAXED) < REAP_PERIOD_NS))
        return 0;
    __atomic_store_n(&last, now, __ATOMIC_RELAXED);
    reap(region, REAP_SETTLE);
    return 1;
}

void slots_before_fork(void)
{
    __atomic_add_fetch(&forks.begun, 1, __ATOMIC_SEQ_CST);
}

void slots_after_fork_in_parent(void)
{
    __atomic_add_fetch(&forks.over, 1, __ATOMIC_SEQ_CST);
}

void slots_after_fork(struct region *region)
{
    region->slot = -1;
    forget_words(region);
    forks.over = forks.begun;
    if (slot_lock.kept_with_children)
        slot_lock.page = NULL; /* mapped as long as the driver's descriptors are open here */
    drop_page();
    /* Another thread may have been claiming: its descriptor is here, too, and keeps the lock. */
    if (slot_lock.descriptor >= 0)
        close(slot_lock.descriptor);
    slot_lock.descriptor = -1;
}
