/* SPDX-License-Identifier: Apache-2.0 */
/* run.c -- reads the files of one run; see run.h. */
#include "arbiter/run.h"
#include "arbiter/page.h"
#include "core/cleanup.h"
#include "core/compiler.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Somewhat longer than a launch sleeps before it asks again. */
#define ASKED_NS UINT64_C(60000000)

#define MORE_SLOTS 16 /* slots read ahead, so that a new process is seen with its first work */

int run_is_named(const char *name)
{
    return strlen(name) == RUN_ID && strspn(name, "0123456789abcdef") == RUN_ID;
}

#define QUOTA_SEEN offsetof(struct quota_file, extra)
#define USAGE_SEEN offsetof(struct usage_file, link_end) /* at least; all of the newest layout */

_Static_assert(QUOTA_SEEN % 8 == 0 && USAGE_SEEN % 8 == 0, "files are read by words");
_Static_assert(sizeof(struct usage_work) == 8 && sizeof(struct usage_compute) % 8 == 0, "likewise");

/* In a folder of root, root may have given the file to the user whose processes write it. */
static int open_of_user(int folder, const char *name, uid_t user)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat status;

    if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
                    (user != 0 && status.st_uid != user))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Whether the file has a known layout and all of the *needed* bytes that we read. */
static int is_whole(int fd, uint64_t magic, size_t needed)
{
    struct region_header header;
    struct stat status;

    return fstat(fd, &status) == 0 &&
           pread(fd, &header, sizeof(header), 0) == (ssize_t) sizeof(header) &&
           header.magic == magic && header.layout >= REGION_LAYOUT_OLD &&
           header.layout <= REGION_LAYOUT && header.size >= needed &&
           status.st_size >= (off_t) header.size;
}

/* The size of a usage file, up to the layout known here. */
static size_t size_of(int fd)
{
    struct region_header header;

    if (pread(fd, &header, sizeof(header), 0) != (ssize_t) sizeof(header))
        return USAGE_SEEN;
    return header.size < sizeof(struct usage_file) ? header.size : sizeof(struct usage_file);
}

static uint32_t part_of_whole(uint32_t percent)
{
    return (percent < 100 ? percent : 100) * CLOCK_WHOLE / 100;
}

static enum lending_priority priority_of(const struct quota_limits *limits)
{
    if (limits->flags & QUOTA_LOW)
        return LENDING_LOW;
    return limits->flags & QUOTA_HIGH ? LENDING_HIGH : LENDING_NORMAL;
}

static void take_limits(struct run *run, const struct quota_limits *limits)
{
    for (unsigned i = 0; i < limits->device_count; i++) {
        const struct quota_device *device = &limits->devices[i];
        struct portion *portion = &run->portions[i];

        memcpy(portion->uuid, device->uuid, sizeof(portion->uuid));
        portion->tenant.own = part_of_whole(device->policy == POLICY_MPS ? 100 : device->vcore);
        portion->tenant.limit = device->policy == POLICY_ELASTIC
                                    ? part_of_whole(device->vcore_limit)
                                    : portion->tenant.own;
        portion->tenant.priority = priority_of(limits);
    }
    run->is_suspended = (limits->flags & QUOTA_SUSPENDED) != 0;
    run->generation = limits->generation;
    run->portion_count = limits->device_count;
}

static int make_lanes(struct run *run, unsigned slots)
{
    for (unsigned i = 0; i < run->portion_count; i++) {
        struct lending_container *tenant = &run->portions[i].tenant;
        struct lending_process *lanes = realloc(tenant->lanes, slots * sizeof(*lanes));

        if (!lanes)
            return 0;
        memset(lanes + tenant->lane_count, 0, (slots - tenant->lane_count) * sizeof(*lanes));
        tenant->lanes = lanes;
        tenant->lane_count = slots;
    }
    run->slots = slots;
    return 1;
}

/* Copies the limits and checks their checksum only if they are new. */
static int refresh_limits(struct run *run)
{
    static struct quota_file quota; /* its beginning */
    struct quota_limits limits;
    unsigned before = run->portion_count;

    if (!peek_at(&run->limits, &quota, QUOTA_SEEN, 0))
        return -1;
    if (region_generation(&quota) == run->generation)
        return 0;
    if (!region_limits(&quota, &limits))
        return 0; /* they are being written */
    if (limits.generation == run->generation)
        return 0;
    if (before && limits.device_count != before)
        return -1; /* the device count never changes in place */
    take_limits(run, &limits);
    return 1;
}

static int refresh_slots(struct run *run)
{
    struct {
        uint32_t high_water, reserved;
    } seen;
    uint32_t used;

    if (!peek_at(&run->published, &seen, sizeof(seen), offsetof(struct usage_file, high_water)))
        return -1;
    used = (seen.high_water < REGION_SLOTS ? seen.high_water : REGION_SLOTS) + MORE_SLOTS;
    used = used < REGION_SLOTS ? used : REGION_SLOTS;
    return used <= run->slots || make_lanes(run, used) ? 0 : -1;
}

int run_refresh(struct run *run)
{
    int changed = refresh_limits(run);

    if (changed < 0 || refresh_slots(run) < 0)
        return -1;
    return changed;
}

static int open_files(struct run *run, int folder)
{
    struct stat status;

    if (fstat(folder, &status) != 0 || (status.st_mode & (S_IWGRP | S_IWOTH)))
        return 0;
    run->quota = open_of_user(folder, "quota", status.st_uid);
    run->usage = open_of_user(folder, "usage", status.st_uid);
    return run->quota >= 0 && run->usage >= 0 && is_whole(run->quota, QUOTA_MAGIC, QUOTA_SEEN) &&
           is_whole(run->usage, USAGE_MAGIC, USAGE_SEEN) &&
           peek_open(&run->limits, run->quota, QUOTA_SEEN) &&
           peek_open(&run->published, run->usage, size_of(run->usage));
}

struct run *run_open(int registry, const char *id)
{
    cleanup_close int folder =
        openat(registry, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct run *run = folder < 0 ? NULL : calloc(1, sizeof(*run));

    if (!run)
        return NULL;
    run->quota = run->usage = -1;
    snprintf(run->id, sizeof(run->id), "%s", id);
    if (open_files(run, folder) && run_lives(run) && run_refresh(run) == 1)
        return run;
    run_close(run, -1);
    return NULL;
}

struct clock_name {
    char text[RUN_ID + 16];
};

static struct clock_name name_clock(const struct run *run, unsigned index)
{
    struct clock_name name;

    snprintf(name.text, sizeof(name.text), "%s.%u", run->id, index);
    return name;
}

void run_close(struct run *run, int clocks)
{
    for (unsigned i = 0; i < run->portion_count; i++) {
        free(run->portions[i].tenant.lanes);
        if (run->portions[i].page)
            page_remove(run->portions[i].page, clocks, name_clock(run, i).text);
    }
    peek_close(&run->limits);
    peek_close(&run->published);
    cleanup_close_fd(&run->quota);
    cleanup_close_fd(&run->usage);
    free(run);
}

static int is_locked(int fd, off_t start, off_t length)
{
    struct flock lock = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int run_lives(const struct run *run)
{
    return is_locked(run->quota, QUOTA_LOCK_SUPERVISOR, 1) ||
           is_locked(run->usage, USAGE_LOCK_SLOT, REGION_SLOTS);
}

int run_links_to(const struct run *run, int registry, const char *folder)
{
    char name[RUN_ID + 16];
    char target[PATH_MAX];
    size_t length = strlen(folder);
    ssize_t size;

    snprintf(name, sizeof(name), "%s/clock.0", run->id);
    size = readlinkat(registry, name, target, sizeof(target) - 1);
    if (size < 0 || (size_t) size <= length)
        return 0;
    return memcmp(target, folder, length) == 0 && target[length] == '/';
}

static void see_container(struct run *run, unsigned index, uint64_t now)
{
    struct portion *portion = &run->portions[index];
    struct usage_compute compute;
    size_t place = offsetof(struct usage_file, compute) + index * sizeof(compute);

    if (!peek_at(&run->published, &compute, sizeof(compute), place))
        return;
    portion->tenant.bought_ns = compute.refilled_ns;
    /* A budget not refilled recently is left over from a launch that has stopped waiting. */
    if (compute.waits != portion->waits ||
        (compute.budget_ns <= 0 && now - compute.refilled_ns < ASKED_NS))
        lending_wait(&portion->tenant, now);
    portion->waits = compute.waits;
}

/* The words that processes publish about one device. */
struct published {
    struct usage_work work[REGION_SLOTS];
    uint64_t idle[IDLE_SLOTS][2];
    unsigned idle_count; /* slots that publish when they have no work */
};

/* Read the first slots; NULL if the file was truncated: the next refresh will find out. */
static const struct published *read_published(const struct run *run, unsigned index)
{
    static struct published found;
    size_t place = offsetof(struct usage_file, work) + index * sizeof(found.work);

    found.idle_count = run->slots < IDLE_SLOTS ? run->slots : IDLE_SLOTS;
    if (!peek_at(&run->published, found.work, run->slots * sizeof(*found.work), place))
        return NULL;
    place = offsetof(struct usage_file, idle) + index * sizeof(found.idle);
    if (!peek_at(&run->published, found.idle, found.idle_count * sizeof(*found.idle), place))
        found.idle_count = 0; /* a file of an older layout has none */
    return &found;
}

static const uint64_t *idle_of(const struct published *found, unsigned slot)
{
    return slot < found->idle_count ? found->idle[slot] : NULL;
}

/* A process's progress words; NULL if it has none, or has had no work for long. */
static const uint64_t *progress_of(const struct run *run, unsigned index, unsigned slot)
{
    static uint64_t words[PROGRESS_WORDS];
    size_t place = offsetof(struct usage_file, progress) +
                   ((size_t) index * IDLE_SLOTS + slot) * sizeof(words);

    if (slot >= IDLE_SLOTS || run->portions[index].tenant.lanes[slot].still >= LENDING_STILL)
        return NULL;
    return peek_at(&run->published, words, sizeof(words), place) ? words : NULL;
}

void run_see(struct run *run, unsigned index, struct lending *lending, uint64_t now)
{
    const struct published *found = read_published(run, index);
    struct lending_container *tenant = &run->portions[index].tenant;
    uint64_t fresh = 0;

    others_begin(&tenant->others, lending->now_ns, now);
    for (unsigned slot = 0; found && slot < run->slots; slot++) {
        struct lending_process *lane = &tenant->lanes[slot];

        lending_see(lane, found->work[slot], idle_of(found, slot));
        others_see(lending->others, &tenant->others, &lane->others, slot,
                   progress_of(run, index, slot), !lending_is_idle(lane), lending->now_ns, now);
        fresh |= lane->fresh_ns;
    }
    if (found && (fresh || tenant->limit > tenant->own || tenant->priority == LENDING_LOW))
        see_container(run, index, now);
}

int run_has_work(const struct run *run, unsigned index, uint64_t passed_ns, uint64_t now)
{
    const struct published *found = read_published(run, index);
    const struct lending_process *lanes = run->portions[index].tenant.lanes;

    for (unsigned slot = 0; found && slot < run->slots; slot++)
        if (lending_has_work(&lanes[slot], found->work[slot], idle_of(found, slot), passed_ns, now))
            return 1;
    return 0;
}

int run_has(const struct run *run, const struct process *process)
{
    static struct usage_slot slots[REGION_SLOTS];

    if (!peek_at(&run->published, slots, run->slots * sizeof(*slots),
                 offsetof(struct usage_file, slots)))
        return 0;
    for (unsigned slot = 0; slot < run->slots; slot++)
        if (slots[slot].pid == process->pid &&
            (!slots[slot].pid_namespace || !process->pid_namespace ||
             slots[slot].pid_namespace == process->pid_namespace))
            return 1;
    return 0;
}

void run_show(struct run *run, unsigned index, int clocks, const struct lending *lending)
{
    struct portion *portion = &run->portions[index];

    if (!portion->page)
        portion->page = page_make(clocks, name_clock(run, index).text, portion->uuid);
    if (portion->page)
        page_write(portion->page, lending, &portion->tenant);
}

void run_rest(struct run *run)
{
    for (unsigned i = 0; i < run->portion_count; i++)
        for (unsigned slot = 0; slot < run->portions[i].tenant.lane_count; slot++)
            run->portions[i].tenant.lanes[slot].backlog_ns =
                run->portions[i].tenant.lanes[slot].fresh_ns = 0;
}

void run_bury(struct run *run)
{
    for (unsigned slot = 0; slot < run->slots; slot++) {
        uint64_t backlog = 0;

        for (unsigned i = 0; i < run->portion_count; i++)
            backlog |= run->portions[i].tenant.lanes[slot].backlog_ns;
        if (!backlog || is_locked(run->usage, USAGE_LOCK_SLOT + (off_t) slot, 1))
            continue;
        for (unsigned i = 0; i < run->portion_count; i++)
            run->portions[i].tenant.lanes[slot].backlog_ns = 0; /* and nothing is fresh now */
    }
}
