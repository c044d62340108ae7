/* SPDX-License-Identifier: Apache-2.0 */
/* test_region.c -- validation of region files, slots, and limits that change in place. */
#include "check.h"
#include "scratch_region.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static void valid_region_opens(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct quota_limits limits;
    struct region region;

    CHECK_EQUAL("it opens", scratch_open(&scratch, &region, &reason), REGION_OK);
    CHECK("limits are valid", region_limits(region.quota, &limits));
    CHECK_EQUAL("and what was written", limits.devices[0].vmemory, 1000);
    CHECK_EQUAL("no slot is used", region.usage->high_water, 0);
    scratch_remove(&scratch);
}

/* A file of an older layout ends where that did. */
static void make_older(const char *path, uint32_t layout, size_t size)
{
    struct region_header header;
    int fd;

    chmod(path, 0600);
    fd = open(path, O_RDWR);
    CHECK("read", pread(fd, &header, sizeof(header), 0) == (ssize_t) sizeof(header));
    header.layout = layout;
    header.size = (uint32_t) size;
    CHECK("written", pwrite(fd, &header, sizeof(header), 0) == (ssize_t) sizeof(header));
    CHECK("cut", ftruncate(fd, (off_t) size) == 0);
    close(fd);
}

static void older_usage_files_lack_newer_fields(void)
{
    static const size_t sizes[] = {[1] = offsetof(struct usage_file, link_end),
                                   [2] = offsetof(struct usage_file, idle),
                                   [3] = offsetof(struct usage_file, progress),
                                   [4] = offsetof(struct usage_file, blocks),
                                   [5] = sizeof(struct usage_file)};

    for (uint32_t layout = 1; layout <= REGION_LAYOUT; layout++) {
        struct scratch scratch = scratch_make(1000);
        struct region_reason reason;
        struct region region;

        make_older(scratch.usage, layout, sizes[layout]);
        CHECK_EQUAL("it opens", scratch_open(&scratch, &region, &reason), REGION_OK);
        CHECK("links", (region.links != NULL) == (layout >= 2));
        CHECK("times without work", (region.idle != NULL) == (layout >= 3));
        CHECK("what is finished", (region.progress != NULL) == (layout >= 4));
        CHECK("reserved blocks", (region.blocks != NULL) == (layout >= 5));
        scratch_remove(&scratch);
    }
}

/* Cases: one damaged field each, and the expected result. */
static const struct damage {
    const char *what;
    int in_usage;
    long offset; /* -1: change the size instead */
    unsigned char byte;
    long size;
    enum region_failure expected;
    const char *said;
} damages[] = {
    {"wrong magic of quota", 0, 0, 'X', 0, REGION_DAMAGED, "magic"},
    {"wrong layout of quota", 0, 8, 99, 0, REGION_VERSION, "layout 99"},
    {"a byte of the limits flipped", 0, 100, 0x55, 0, REGION_DAMAGED, "checksum"},
    {"quota cut short", 0, -1, 0, 4096, REGION_DAMAGED, "short"},
    {"empty quota", 0, -1, 0, 0, REGION_DAMAGED, "short"},
    {"wrong magic of usage", 1, 0, 'X', 0, REGION_DAMAGED, "magic"},
    {"wrong layout of usage", 1, 8, 6, 0, REGION_VERSION, "layout 6"},
    {"usage of another region", 1, 16, 8, 0, REGION_DAMAGED, "belong"},
    {"usage cut short", 1, -1, 0, 65536, REGION_DAMAGED, "short"},
};

static void damaged_files_are_refused(void)
{
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        const struct damage *damage = &damages[i];
        struct scratch scratch = scratch_make(1000);
        const char *path = damage->in_usage ? scratch.usage : scratch.quota;
        struct region_reason reason = {""};
        struct region region;
        int fd;

        chmod(path, 0600);
        fd = open(path, O_WRONLY);
        if (damage->offset < 0)
            CHECK("cut", ftruncate(fd, damage->size) == 0);
        else
            CHECK("written", pwrite(fd, &damage->byte, 1, damage->offset) == 1);
        close(fd);
        chmod(path, damage->in_usage ? 0644 : 0444);
        CHECK_EQUAL(damage->what, scratch_open(&scratch, &region, &reason), damage->expected);
        CHECK(damage->what, strstr(reason.text, damage->said) && strstr(reason.text, path));
        scratch_remove(&scratch);
    }
}

static void missing_and_writable_files_are_refused(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;

    chmod(scratch.quota, 0644);
    CHECK_EQUAL("a quota with a write bit", scratch_open(&scratch, &region, &reason),
                REGION_WRITABLE);
    chmod(scratch.quota, 0444);
    CHECK_EQUAL("a quota on a writable mount, where it must be read-only",
                region_open_files(&region, 1, &reason), REGION_WRITABLE);
    unlink(scratch.usage);
    CHECK_EQUAL("no usage", scratch_open(&scratch, &region, &reason), REGION_MISSING);
    scratch_usage(&scratch);
    rename(scratch.quota, scratch.usage);
    CHECK_EQUAL("no quota", scratch_open(&scratch, &region, &reason), REGION_MISSING);
    CHECK("a link", symlink(scratch.usage, scratch.quota) == 0);
    CHECK_EQUAL("a quota behind a symbolic link", scratch_open(&scratch, &region, &reason),
                REGION_UNREADABLE);
    scratch_remove(&scratch);
}

/* A program that may write the folder could otherwise point its ledger to another one. */
static void usage_behind_a_link_is_refused(void)
{
    struct scratch scratch = scratch_make(1000);
    struct scratch other = scratch_make(1000);
    struct region_reason reason;
    struct region region;

    CHECK_EQUAL("a file", scratch_open(&scratch, &region, &reason), REGION_OK);
    unlink(scratch.usage);
    CHECK("a link to a valid file", symlink(other.usage, scratch.usage) == 0);
    CHECK_EQUAL("is not followed", scratch_open(&scratch, &region, &reason), REGION_UNREADABLE);
    CHECK("and named", strstr(reason.text, scratch.usage) != NULL);
    scratch_remove(&other);
    scratch_remove(&scratch);
}

static void newer_valid_copy_counts(void)
{
    struct quota_file quota = {.limits = {scratch_limits(10), scratch_limits(20)}};
    struct quota_limits limits;

    quota.limits[1].generation = 2;
    quota.limits[1].checksum = region_checksum(&quota.limits[1]);
    CHECK("valid", region_limits(&quota, &limits));
    CHECK_EQUAL("the higher generation", limits.devices[0].vmemory, 20);
    CHECK_EQUAL("is noticed", region_generation(&quota), 2);
    quota.limits[1].devices[0].vmemory = 30; /* a writer that died half-way */
    CHECK("still valid", region_limits(&quota, &limits));
    CHECK_EQUAL("the older copy goes on", limits.devices[0].vmemory, 10);
    quota.limits[0].generation = 0;
    CHECK("none left", !region_limits(&quota, &limits));
}

static pid_t claim_in_child(const struct scratch *scratch, int *claimed)
{
    int pipes[2];
    pid_t child;

    if (pipe(pipes) != 0)
        exit(2);
    child = fork();
    if (child == 0) {
        struct region_reason reason;
        struct region region;
        int slot = -1;

        if (scratch_open(scratch, &region, &reason) == REGION_OK &&
            slots_claim(&region, 0, &reason) == REGION_OK) {
            slot = region.slot;
            region.usage->charged[0][slot] = 100;
        }
        if (write(pipes[1], &slot, sizeof(slot)) != sizeof(slot))
            _exit(1);
        pause();
        _exit(0);
    }
    if (read(pipes[0], claimed, sizeof(*claimed)) != sizeof(*claimed))
        exit(2);
    close(pipes[0]);
    close(pipes[1]);
    return child;
}

static void dead_processs_slot_is_cleared_and_reused(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;
    int slots[3];
    pid_t children[3];

    for (int i = 0; i < 3; i++) {
        children[i] = claim_in_child(&scratch, &slots[i]);
        CHECK_EQUAL("slots are dense", slots[i], i);
    }
    CHECK_EQUAL("opens", scratch_open(&scratch, &region, &reason), REGION_OK);
    kill(children[1], SIGKILL);
    waitpid(children[1], NULL, 0);
    region.usage->scanned_ns = 0;
    slots_reap(&region);
    CHECK_EQUAL("the dead hold nothing", region.usage->charged[0][1], 0);
    CHECK_EQUAL("the living do", region.usage->charged[0][2], 100);
    region.usage->charged[0][1] = 7;
    region.usage->slots[1].pid = 1;
    slots_reap(&region);
    CHECK_EQUAL("not twice within 50 ms", region.usage->charged[0][1], 7);
    CHECK("but before a refusal", slots_reap_before_refusal(&region) == 1);
    CHECK_EQUAL("it is cleared", region.usage->charged[0][1], 0);
    CHECK("once in 50 ms", slots_reap_before_refusal(&region) == 0);
    children[1] = claim_in_child(&scratch, &slots[1]);
    CHECK_EQUAL("the slot is used again", slots[1], 1);
    for (int i = 2; i >= 0; i--) {
        CHECK_EQUAL("sums go over the slots in use", region.usage->high_water, i + 1);
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
        region.usage->scanned_ns = 0;
        slots_reap(&region);
    }
    CHECK_EQUAL("and over none when all are dead", region.usage->high_water, 0);
    children[0] = claim_in_child(&scratch, &slots[0]);
    CHECK_EQUAL("the mark rises again", region.usage->high_water, 1);
    kill(children[0], SIGKILL);
    waitpid(children[0], NULL, 0);
    munmap(region.usage, sizeof(*region.usage));
    scratch_remove(&scratch);
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* With many processes not every starting one reaps dead ones, only if none did for long. */
static void dead_slot_is_reused_among_many_processes(void)
{
    enum { MANY = 20 };
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;
    pid_t children[MANY];
    int slot;

    CHECK_EQUAL("opens", scratch_open(&scratch, &region, &reason), REGION_OK);
    for (int i = 0; i < MANY; i++)
        children[i] = claim_in_child(&scratch, &slot);
    CHECK_EQUAL("all have one", slot, MANY - 1);
    end_child(children[3]);
    region.usage->scanned_ns = 0;
    children[3] = claim_in_child(&scratch, &slot);
    CHECK_EQUAL("that of the dead", slot, 3);
    for (int i = 0; i < MANY; i++)
        end_child(children[i]);
    munmap(region.usage, sizeof(*region.usage));
    scratch_remove(&scratch);
}

/* What a forked child does while its parent is killed. */
enum child_does { WAITS, CLOSES_ALL, FORKS_AGAIN, EXECS };

static void be_a_child(struct region *region, enum child_does what, int lives)
{
    slots_after_fork(region);
    if (what == CLOSES_ALL)
        for (int fd = 0; fd < 1024; fd++)
            if (fd != lives)
                close(fd);
    if (what == FORKS_AGAIN && fork() == 0)
        slots_after_fork(region);
    else if (what == FORKS_AGAIN)
        _exit(0);
    if (what == EXECS) {
        dup2(lives, STDIN_FILENO);
        execlp("cat", "cat", (char *) NULL);
        _exit(127);
    }
    while (read(lives, &(char) {0}, 1) > 0)
        continue;
    _exit(0);
}

/* Hold 100 bytes, fork, report the slot through the pipe, and be killed. */
static void be_a_parent(const struct scratch *scratch, enum child_does what, int is_initialised,
                        const int *lives, int report)
{
    struct region own;
    struct region_reason reason;

    close(lives[1]);
    if (scratch_open(scratch, &own, &reason) || slots_claim(&own, 0, &reason))
        _exit(1);
    own.usage->charged[0][own.slot] = 100;
    if (is_initialised)
        slots_keep_with_children();
    if (fork() == 0) {
        close(report);
        be_a_child(&own, what, lives[0]);
    }
    if (write(report, &own.slot, sizeof(own.slot)) != sizeof(own.slot))
        _exit(1);
    pause();
}

/* Does the slot become free? The kernel may take a moment to release it. */
static int becomes_free(int fd, int slot)
{
    for (int tries = 0; tries < 10000; tries++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = USAGE_LOCK_SLOT + slot, .l_len = 1};

        if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
            return 1;
        usleep(1000);
    }
    return 0;
}

static uint64_t reap_and_read(struct region *region, int slot)
{
    region->usage->scanned_ns = 0;
    slots_reap(region);
    return region->usage->charged[0][slot];
}

static void a_killed_parent_leaves_its_slot(enum child_does what, int is_initialised, int is_kept)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;
    int report[2], lives[2], slot = -1;
    pid_t parent;
    int fd = open(scratch.usage, O_RDWR | O_CLOEXEC);

    CHECK("pipes", pipe(report) == 0 && pipe(lives) == 0);
    fcntl(lives[1], F_SETFD, FD_CLOEXEC);
    parent = fork();
    if (parent == 0)
        be_a_parent(&scratch, what, is_initialised, lives, report[1]);
    close(report[1]);
    close(lives[0]);
    CHECK("it has a slot", read(report[0], &slot, sizeof(slot)) == sizeof(slot));
    CHECK_EQUAL("opens", scratch_open(&scratch, &region, &reason), REGION_OK);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    if (is_kept) {
        CHECK_EQUAL("held as long as the child lives", reap_and_read(&region, slot), 100);
        CHECK_EQUAL("another one joins", slots_claim(&region, 0, &reason), REGION_OK);
        CHECK("and has another slot", region.slot != slot);
        slots_release(&region);
        CHECK_EQUAL("held after that, too", reap_and_read(&region, slot), 100);
        close(lives[1]);
    }
    CHECK("nothing keeps it then", becomes_free(fd, slot));
    CHECK_EQUAL("given back", reap_and_read(&region, slot), 0);
    if (!is_kept)
        close(lives[1]);
    close(report[0]);
    close(fd);
    munmap(region.usage, sizeof(*region.usage));
    scratch_remove(&scratch);
}

static void slot_lasts_as_long_as_the_drivers_descriptors(void)
{
    a_killed_parent_leaves_its_slot(WAITS, 1, 1);
    a_killed_parent_leaves_its_slot(CLOSES_ALL, 1, 1);
    a_killed_parent_leaves_its_slot(FORKS_AGAIN, 1, 1);
    a_killed_parent_leaves_its_slot(EXECS, 1, 0);
    a_killed_parent_leaves_its_slot(WAITS, 0, 0); /* forked before the driver had any */
}

#define FORKS  300
#define KEPT   20 /* children that live at a time */
#define CLAIMS 100000

static struct region forked_region;
static int forks_done;

static void in_child(void)
{
    slots_after_fork(&forked_region);
}

static void *fork_and_fork(void *unused)
{
    pid_t children[FORKS];

    (void) unused;
    for (int i = 0; i < FORKS + KEPT; i++) {
        if (i < FORKS && (children[i] = fork()) == 0) {
            pause();
            _exit(0);
        }
        if (i >= KEPT) {
            kill(children[i - KEPT], SIGKILL);
            waitpid(children[i - KEPT], NULL, 0);
        }
    }
    __atomic_store_n(&forks_done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A child that is forked during a claim must not keep the slot's lock. */
static void fork_during_a_claim_does_not_share_the_lock(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    pthread_t forker;
    int claims = 0;
    int kept = 0;
    int fd;

    CHECK_EQUAL("opens", scratch_open(&scratch, &forked_region, &reason), REGION_OK);
    fd = open(scratch.usage, O_RDWR);
    pthread_atfork(slots_before_fork, slots_after_fork_in_parent, in_child);
    pthread_create(&forker, NULL, fork_and_fork, NULL);
    while (!__atomic_load_n(&forks_done, __ATOMIC_SEQ_CST) && claims++ < CLAIMS) {
        int slot;

        if (slots_claim(&forked_region, 0, &reason))
            break;
        slot = forked_region.slot;
        slots_release(&forked_region);
        kept += !becomes_free(fd, slot); /* a child has the lock until its own handler has run */
    }
    pthread_join(forker, NULL);
    CHECK("there were claims", claims > 10);
    CHECK_EQUAL("locks that a child kept", kept, 0);
    close(fd);
    scratch_remove(&scratch);
}

static void pipe_in_place_of_a_file_does_not_block(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;

    unlink(scratch.quota);
    CHECK("a pipe", mkfifo(scratch.quota, 0444) == 0);
    CHECK_EQUAL("refused", scratch_open(&scratch, &region, &reason), REGION_UNREADABLE);
    scratch_remove(&scratch);
}

static void supervised_region_closes_with_its_supervisor(void)
{
    struct scratch scratch = scratch_make(1000);
    struct region_reason reason;
    struct region region;
    struct flock lock = {.l_type = F_WRLCK, .l_start = QUOTA_LOCK_SUPERVISOR, .l_len = 1};
    int supervisor;

    chmod(scratch.quota, 0644);
    supervisor = open(scratch.quota, O_RDWR);
    chmod(scratch.quota, 0444);
    CHECK("the supervisor has its lock", fcntl(supervisor, F_OFD_SETLK, &lock) == 0);
    CHECK_EQUAL("opens", scratch_open(&scratch, &region, &reason), REGION_OK);
    CHECK_EQUAL("a slot while it lives", slots_claim(&region, QUOTA_SUPERVISED, &reason),
                REGION_OK);
    slots_release(&region);
    close(supervisor);
    CHECK_EQUAL("none after it", slots_claim(&region, QUOTA_SUPERVISED, &reason), REGION_CLOSED);
    CHECK_EQUAL("and none is kept", region.slot, -1);
    CHECK_EQUAL("an unsupervised one does not ask", slots_claim(&region, 0, &reason), REGION_OK);
    slots_release(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    valid_region_opens();
    older_usage_files_lack_newer_fields();
    damaged_files_are_refused();
    missing_and_writable_files_are_refused();
    usage_behind_a_link_is_refused();
    newer_valid_copy_counts();
    dead_processs_slot_is_cleared_and_reused();
    dead_slot_is_reused_among_many_processes();
    slot_lasts_as_long_as_the_drivers_descriptors();
    fork_during_a_claim_does_not_share_the_lock();
    pipe_in_place_of_a_file_does_not_block();
    supervised_region_closes_with_its_supervisor();
    return check_end();
}
