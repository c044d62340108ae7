/* SPDX-License-Identifier: Apache-2.0 */
/* arbiter.c -- finds runs, feeds the model, writes the clock files; see arbiter.h. */
#include "arbiter/arbiter.h"
#include "arbiter/outside.h"
#include "arbiter/page.h"
#include "core/cleanup.h"
#include "core/compiler.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCAN_NS UINT64_C(40000000)  /* between scans for new or changed runs */
#define BURY_NS UINT64_C(500000000) /* between scans for dead runs and processes */

#define TAKE_TRIES 100

/* NVML's figures are means over some tenths of a second. */
#define USED_NS      UINT64_C(400000000)
#define OUTSIDE_NS   UINT64_C(1000000000) /* for so long a user outside of all runs is counted */
#define OUTSIDE_PART 0.05                 /* its least fraction of the device's time */
#define OUTSIDE_MOST UINT64_C(60000000)   /* its longest backlog */

/* Tick lengths. Much less than the 100 ms for which shims believe a clock that has stopped, and
 * shorter the more changes within a tick; but waking up is most of an arbiter's cost. */
#define IDLE_TICK_NS UINT64_C(50000000) /* no process has work */
#define BUSY_TICK_NS UINT64_C(30000000)
#define LENT_TICK_NS UINT64_C(5000000) /* lent time has to be returned at once */

/* Between ticks, the interval of checks for work of higher priority: while runs of low priority
 * have work or recently had some, and otherwise. */
#define WATCH_NS      UINT64_C(1000000)
#define CALM_WATCH_NS UINT64_C(10000000)

static struct device *find_device(struct arbiter *arbiter, const uint8_t uuid[16], uint64_t now)
{
    struct device *device = NULL;

    for (unsigned i = 0; i < arbiter->count; i++) {
        if (memcmp(arbiter->devices[i]->uuid, uuid, 16) == 0)
            return arbiter->devices[i];
    }
    if (arbiter->count < ARBITER_DEVICES)
        device = calloc(1, sizeof(*device));
    if (!device)
        return NULL;
    memcpy(device->uuid, uuid, sizeof(device->uuid));
    lending_start(&device->lending, now);
    device->lending.others = &device->others;
    arbiter->devices[arbiter->count++] = device;
    return device;
}

/* Assign the runs to the devices that they share, and the outsiders, too. */
static void seat(struct arbiter *arbiter, uint64_t now)
{
    for (unsigned i = 0; i < arbiter->count; i++) {
        arbiter->devices[i]->count = 0;
        arbiter->devices[i]->low = 0;
    }
    for (unsigned i = 0; i < arbiter->registries.count; i++) {
        struct run *run = arbiter->registries.runs[i];

        if (run->is_suspended)
            run_rest(run);
        for (unsigned j = 0; j < run->portion_count; j++) {
            struct portion *portion = &run->portions[j];

            portion->device = run->is_suspended ? NULL : find_device(arbiter, portion->uuid, now);
            if (!portion->device || portion->device->count == REGISTRY_RUNS)
                continue;
            portion->device->tenants[portion->device->count++] = &portion->tenant;
            portion->device->low |= portion->tenant.priority == LENDING_LOW;
        }
    }
    for (unsigned i = 0; i < arbiter->count; i++) {
        struct device *device = arbiter->devices[i];

        device->lending.outside = device->count && device->outsiders.part > 0;
        if (device->lending.outside)
            device->tenants[device->count++] = &device->outsiders.tenant;
    }
    for (unsigned i = 0; i < arbiter->count; i++)
        lending_seat(&arbiter->devices[i]->lending, arbiter->devices[i]->tenants,
                     arbiter->devices[i]->count);
}

static int is_outside(const struct arbiter *arbiter, const struct outside *seen)
{
    for (unsigned i = 0; i < seen->count; i++) {
        struct process process;

        if (process_read(seen->pids[i], &process) &&
            !registry_has_process(&arbiter->registries, &process))
            return 1;
    }
    return 0;
}

/* Measure how much of the device's time processes outside of all runs use. 1: the first such
 * process has appeared, or the last one is gone. */
static int scan_outside(const struct arbiter *arbiter, struct device *device, uint64_t now)
{
    struct outsiders *outsiders = &device->outsiders;
    double before = outsiders->part;
    struct outside seen;

    if (outside_read(device->uuid, now, &seen) && seen.at_ns != outsiders->seen_ns) {
        outsiders->seen_ns = seen.at_ns;
        if (is_outside(arbiter, &seen)) {
            double beyond = seen.load / 100.0 - device->used;

            outsiders->until_ns = now + OUTSIDE_NS;
            outsiders->part = beyond > OUTSIDE_PART ? beyond : OUTSIDE_PART;
        }
    }
    if (now >= outsiders->until_ns)
        outsiders->part = 0;
    if (outsiders->part > 0 && before <= 0) {
        outsiders->lane = (struct lending_process) {0};
        outsiders->tenant = (struct lending_container) {.lanes = &outsiders->lane, .lane_count = 1};
    }
    return (outsiders->part > 0) != (before > 0);
}

static void scan(struct arbiter *arbiter, int bury, uint64_t now)
{
    int changed = registry_scan(&arbiter->registries);

    if (bury)
        changed |= registry_drop_dead(&arbiter->registries);
    for (unsigned i = 0; i < arbiter->count; i++)
        if (arbiter->devices[i]->lending.busy)
            changed |= scan_outside(arbiter, arbiter->devices[i], now);
    if (changed)
        seat(arbiter, now);
    for (unsigned i = arbiter->count; i-- > 0;) {
        if (!arbiter->devices[i]->count) {
            free(arbiter->devices[i]);
            arbiter->devices[i] = arbiter->devices[--arbiter->count];
        }
    }
}

/* Call *act* for each run's share of each device. */
static void for_each_portion(struct arbiter *arbiter, uint64_t now,
                             void (*act)(struct arbiter *, struct run *, unsigned, uint64_t))
{
    for (unsigned i = 0; i < arbiter->registries.count; i++) {
        struct run *run = arbiter->registries.runs[i];

        for (unsigned j = 0; j < run->portion_count; j++) {
            if (run->portions[j].device)
                act(arbiter, run, j, now);
        }
    }
}

static void see(struct arbiter *arbiter, struct run *run, unsigned index, uint64_t now)
{
    (void) arbiter;
    run_see(run, index, &run->portions[index].device->lending, now);
}

static void show(struct arbiter *arbiter, struct run *run, unsigned index, uint64_t now)
{
    (void) now;
    run_show(run, index, arbiter->folder, &run->portions[index].device->lending);
}

/* Processes that belong to no run publish nothing: make up their work from the time they use. */
static void let_outsiders_work(struct device *device, uint64_t now)
{
    struct outsiders *outsiders = &device->outsiders;
    struct lending_process *lane = &outsiders->lane;
    uint64_t passed = now - device->lending.now_ns;
    uint64_t fresh = (uint64_t) (outsiders->part * (double) passed);
    struct usage_work work = lane->seen;

    if (outsiders->part <= 0)
        return;
    fresh = lane->backlog_ns + fresh > OUTSIDE_MOST ? 0 : fresh;
    work.begun += (uint32_t) (fresh / WORK_UNIT_NS);
    work.finished = work.begun - (uint32_t) ((lane->backlog_ns + fresh) / WORK_UNIT_NS) - 1;
    lending_see(lane, work, NULL);
    others_begin(&outsiders->tenant.others, device->lending.now_ns, now);
    others_see(&device->others, &outsiders->tenant.others, &lane->others, 0, NULL, 1,
               device->lending.now_ns, now);
}

/* Update the part of the device's time that the runs used recently. */
static void note_used(struct device *device, uint64_t passed)
{
    double weight = passed < USED_NS ? (double) passed / (double) USED_NS : 1.0;
    double used = 0;

    for (unsigned i = 0; i < device->count; i++)
        if (device->tenants[i] != &device->outsiders.tenant)
            used += device->tenants[i]->used / (double) CLOCK_WHOLE;
    device->used += (used - device->used) * weight;
}

/* Note whether this run has work that runs of low priority give way to. */
static void scan_above(struct arbiter *arbiter, struct run *run, unsigned index, uint64_t now)
{
    const struct portion *portion = &run->portions[index];
    struct device *device = portion->device;

    (void) arbiter;
    if (!device->low || portion->tenant.priority == LENDING_LOW ||
        device->above == CLOCK_ABOVE_BUSY)
        return;
    device->above = run_has_work(run, index, now - device->lending.now_ns, now) ? CLOCK_ABOVE_BUSY
                                                                                : CLOCK_ABOVE_IDLE;
}

static void show_above(struct arbiter *arbiter, struct run *run, unsigned index, uint64_t now)
{
    const struct portion *portion = &run->portions[index];
    int gives_way = portion->tenant.priority == LENDING_LOW;

    (void) arbiter;
    if (!portion->page)
        return;
    page_write_above(portion->page, gives_way ? portion->device->above : 0);
    if (gives_way && portion->device->above)
        portion->device->watched |= lending_is_active(&portion->tenant, now);
}

static void watch(struct arbiter *arbiter, uint64_t now)
{
    for (unsigned i = 0; i < arbiter->count; i++) {
        arbiter->devices[i]->above = 0;
        arbiter->devices[i]->watched = 0;
    }
    for_each_portion(arbiter, now, scan_above);
    for_each_portion(arbiter, now, show_above);
}

/* Time until the next update of clock_file.above; UINT64_MAX: no device needs one. */
static uint64_t next_watch_ns(const struct arbiter *arbiter)
{
    uint64_t next = UINT64_MAX;

    for (unsigned i = 0; i < arbiter->count; i++) {
        const struct device *device = arbiter->devices[i];

        if (device->watched)
            return WATCH_NS;
        if (device->above)
            next = CALM_WATCH_NS;
    }
    return next;
}

static void tick(struct arbiter *arbiter, uint64_t now)
{
    for_each_portion(arbiter, now, see);
    lending_start(&arbiter->beat, now);
    for (unsigned i = 0; i < arbiter->count; i++) {
        struct device *device = arbiter->devices[i];
        uint64_t passed = now - device->lending.now_ns;

        let_outsiders_work(device, now);
        lending_tick(&device->lending, device->tenants, device->count, now);
        note_used(device, passed);
        if (device->lending.busy > arbiter->beat.busy)
            arbiter->beat.busy = device->lending.busy;
        if (device->lending.busy && device->lending.tenants > arbiter->beat.tenants)
            arbiter->beat.tenants = device->lending.tenants;
        if (device->lending.lent > arbiter->beat.lent)
            arbiter->beat.lent = device->lending.lent;
    }
    for_each_portion(arbiter, now, show);
    page_write(arbiter->page, &arbiter->beat, NULL);
}

/* No run needs the clocks, and no new run can: runs are created under the reservations' lock,
 * which this process then holds until it exits. */
static int is_needless(struct arbiter *arbiter, uint64_t now)
{
    int registry;

    if (registry_reads_clocks_from(&arbiter->registries, arbiter->path))
        return 0;
    registry = openat(arbiter->folder, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (registry >= 0 && flock(registry, LOCK_EX | LOCK_NB) == 0) {
        scan(arbiter, 1, now);
        if (!registry_reads_clocks_from(&arbiter->registries, arbiter->path))
            return 1;
    }
    cleanup_close_fd(&registry);
    return 0;
}

/* A keeper that was killed leaves us behind, and perhaps runs of its registry that need our clocks.
 */
static int is_kept(const struct arbiter *arbiter, pid_t keeper)
{
    return keeper && (getppid() == keeper || registry_has_live_run(&arbiter->registries, 0));
}

static uint64_t next_tick_ns(const struct arbiter *arbiter)
{
    if (arbiter->beat.lent || arbiter->beat.busy > 1 || next_watch_ns(arbiter) == WATCH_NS ||
        (arbiter->beat.busy && arbiter->beat.tenants > 1))
        return LENT_TICK_NS;
    return arbiter->beat.busy ? BUSY_TICK_NS : IDLE_TICK_NS;
}

static void sleep_until(uint64_t until)
{
    const struct timespec then = {.tv_sec = (time_t) (until / UINT64_C(1000000000)),
                                  .tv_nsec = (long) (until % UINT64_C(1000000000))};

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL);
}

/* Scan for runs that came and went. 0: no run needs this arbiter any more, and it should end. */
static int find_runs(struct arbiter *arbiter, pid_t keeper, uint64_t now)
{
    int bury = now - arbiter->buried_ns >= BURY_NS;

    if (!bury && now - arbiter->scanned_ns < SCAN_NS)
        return 1;
    scan(arbiter, bury, now);
    arbiter->scanned_ns = now;
    if (bury && !is_kept(arbiter, keeper) && is_needless(arbiter, now))
        return 0;
    arbiter->buried_ns = bury ? now : arbiter->buried_ns;
    return 1;
}

void arbiter_keep(struct arbiter *arbiter, pid_t keeper, const volatile sig_atomic_t *ended)
{
    uint64_t next = 0; /* tick */
    uint64_t tick_ns, watch_ns;

    while (!*ended) {
        uint64_t now = clock_now_ns(CLOCK_MONOTONIC);

        if (now >= next) {
            if (!find_runs(arbiter, keeper, now))
                return;
            tick(arbiter, now);
            tick_ns = next_tick_ns(arbiter);
            next += tick_ns; /* a much shorter tick would show nothing */
            next = next > now + tick_ns / 4 ? next : now + tick_ns;
        }
        watch(arbiter, now);
        watch_ns = next_watch_ns(arbiter);
        sleep_until(watch_ns < next - now ? now + watch_ns : next);
    }
}

/* Remove clock files: our own, or those that a killed arbiter left behind. */
static void clear_folder(int folder)
{
    int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = own < 0 ? NULL : fdopendir(own);
    const struct dirent *entry;

    while (entries && (entry = readdir(entries)) != NULL) {
        if (strlen(entry->d_name) > RUN_ID && strchr(entry->d_name + RUN_ID, '.'))
            unlinkat(folder, entry->d_name, 0);
    }
    if (entries)
        closedir(entries);
}

const char arbiter_other[] = "another arbiter holds the lock";

/* An arbiter that ends removes its file, then its folder. One that starts meanwhile may have opened
 * either of them, and no supervisor would see its lock on a removed file. */
static const char removed[] = "the folder is removed repeatedly";

static const char *take_lock(struct arbiter *arbiter)
{
    /* A POSIX lock, unlike our other, OFD locks: F_GETLK reports its owner's pid. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat status;

    arbiter->lock = openat(arbiter->folder, "arbiter",
                           O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (arbiter->lock < 0)
        return errno == ENOENT ? removed : strerror(errno);
    if (fcntl(arbiter->lock, F_SETLK, &lock) != 0)
        return errno == EAGAIN || errno == EACCES ? arbiter_other : strerror(errno);
    if (fstat(arbiter->lock, &status) != 0)
        return strerror(errno);
    return status.st_nlink ? NULL : removed;
}

static const char *take_folder(struct arbiter *arbiter)
{
    struct stat status;

    if (mkdir(arbiter->path, 0755) != 0 && errno != EEXIST)
        return strerror(errno);
    arbiter->folder = open(arbiter->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (arbiter->folder < 0)
        return errno == ENOENT ? removed : strerror(errno);
    if (fstat(arbiter->folder, &status) != 0)
        return strerror(errno);
    if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)))
        return "others may write to it";
    return take_lock(arbiter);
}

const char *arbiter_take(struct arbiter *arbiter, const char *path)
{
    static const uint8_t no_device[16];
    const char *failure = removed;

    arbiter->path = path;
    for (unsigned i = 0; i < TAKE_TRIES && failure == removed; i++) {
        arbiter->folder = arbiter->lock = -1;
        failure = take_folder(arbiter);
        if (failure == removed) {
            cleanup_close_fd(&arbiter->lock);
            cleanup_close_fd(&arbiter->folder);
        }
    }
    if (failure)
        return failure;
    arbiter->registries.clocks = arbiter->folder;
    clear_folder(arbiter->folder);
    lending_start(&arbiter->beat, clock_now_ns(CLOCK_MONOTONIC));
    arbiter->page = page_fill(arbiter->lock, no_device);
    if (!arbiter->page)
        return strerror(errno);
    page_write(arbiter->page, &arbiter->beat, NULL);
    return NULL;
}

void arbiter_leave(struct arbiter *arbiter)
{
    clear_folder(arbiter->folder);
    unlinkat(arbiter->folder, "arbiter", 0);
    rmdir(arbiter->path);
}
