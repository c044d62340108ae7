/* SPDX-License-Identifier: Apache-2.0 */
/* test_region_fuzz.c -- damaged region files: an error, or only limits that were written; never a
 * crash.
 *
 * The same cases each time, from one seed. Files of both layouts are damaged before they are
 * opened, and while they are open and in use by all their readers.
 */
#include "check.h"
#include "core/ledger.h"
#include "core/shared_memory.h"
#include "scratch_region.h"

#include <errno.h>

#define VMEMORY (UINT64_C(3) << 30)
#define CLOSED  30000 /* cases of damage before the files are opened */
#define OPEN    20000 /* and of damage while they are */

static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t random_word(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t pick(const uint64_t *from, size_t count)
{
    return from[random_word() % count];
}

#define PICK(array) pick(array, sizeof(array) / sizeof((array)[0]))

/* A file, its whole content, and the offsets where damage matters. */
struct file {
    const char *path;
    int fd;
    size_t size;
    unsigned char *content;
    const uint64_t *spots;
    size_t spot_count;
};

static const uint64_t quota_spots[] = {0,  8,  12, 16,  32,  40,   44,
                                       48, 80, 96, 976, 984, 1936, 133008};
static const uint64_t usage_spots[] = {0,     8,     12,    16,     32,     40,     176,    704,
                                       66240, 66248, 74432, 332480, 332544, 332552, 332560, 463600};
static const uint64_t words[] = {0,
                                 1,
                                 2,
                                 3,
                                 1024,
                                 1025,
                                 8192,
                                 8193,
                                 133008,
                                 133136,
                                 332480,
                                 463616,
                                 UINT32_MAX,
                                 UINT64_C(1) << 51,
                                 UINT64_C(1) << 52,
                                 UINT64_C(1) << 63,
                                 UINT64_MAX};

static struct file keep_file(const char *path, const uint64_t *spots, size_t spot_count)
{
    struct file file = {.path = path, .spots = spots, .spot_count = spot_count};
    struct stat status;

    chmod(path, 0600);
    file.fd = open(path, O_RDWR);
    if (file.fd < 0 || fstat(file.fd, &status) != 0)
        exit(2);
    file.size = (size_t) status.st_size;
    file.content = malloc(file.size);
    if (pread(file.fd, file.content, file.size, 0) != (ssize_t) file.size)
        exit(2);
    return file;
}

static void restore(const struct file *file)
{
    if (ftruncate(file->fd, (off_t) file->size) != 0 ||
        pwrite(file->fd, file->content, file->size, 0) != (ssize_t) file->size)
        exit(2);
}

static void write_at(const struct file *file, uint64_t offset, const void *bytes, size_t size)
{
    if (pwrite(file->fd, bytes, size, (off_t) offset) != (ssize_t) size)
        exit(2);
}

/* Damage a word, half of one, or a bit, where it matters or anywhere. */
static void damage(const struct file *file)
{
    uint64_t spot =
        random_word() % 2 ? pick(file->spots, file->spot_count) : random_word() % (file->size - 8);
    uint64_t word = random_word() % 2 ? PICK(words) : random_word();
    unsigned char byte;

    if (spot + 8 > file->size)
        return; /* that spot is in the newer layout alone */
    byte = file->content[spot] ^ (unsigned char) (1U << random_word() % 8);
    switch (random_word() % 3) {
    case 0:
        write_at(file, spot, &word, 8);
        break;
    case 1:
        write_at(file, spot, &word, 4);
        break;
    default:
        write_at(file, spot, &byte, 1);
        break;
    }
}

static void cut(const struct file *file)
{
    const uint64_t sizes[] = {0,
                              1,
                              31,
                              32,
                              33,
                              4096,
                              file->size - 1,
                              file->size,
                              file->size + 1,
                              file->size + 4096,
                              random_word() % file->size};

    if (ftruncate(file->fd, (off_t) PICK(sizes)) != 0)
        exit(2);
}

static struct region region;
static int wrong_limits;
static int over;

/* Call all readers of the files, as the shim does. */
static void use(void)
{
    struct ledger ledger = {.region = &region};
    uint64_t key = random_word();
    struct quota_limits limits;
    link_t export;
    link_t import;
    struct shared_memory_match match;
    int descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
    int paid;

    if (region_limits(region.quota, &limits)) {
        wrong_limits += limits.devices[0].vmemory != VMEMORY || limits.device_count != 1;
        ledger.limit[0] = limits.devices[0].vmemory;
    }
    over += ledger_charge(&ledger, 0, VMEMORY + 1) == 0;
    if (ledger_charge(&ledger, 0, VMEMORY / 2) == 0) {
        over += ledger_charge(&ledger, 0, VMEMORY / 2 + 1) == 0;
        ledger_refund(&ledger, 0, VMEMORY / 2);
    }
    export = shared_memory_export(&region, key, 0, 1 << 20);
    if (random_word() % 2)
        shared_memory_carry(&region, key, descriptor);
    shared_memory_match(&region, descriptor, &match);
    import = shared_memory_import(&region, key, &paid);
    shared_memory_end_export(&region, export);
    shared_memory_end_import(&region, import);
    shared_memory_collect(&region, 0, 0);
    close(descriptor);
    region.usage->scanned_ns = 0;
    ledger_used(&ledger, 0);
}

static int open_damaged(const struct file *quota, const struct file *usage)
{
    struct region_reason reason = {""};

    memset(&region, 0, sizeof(region));
    strcpy(region.quota_path, quota->path);
    strcpy(region.usage_path, usage->path);
    if (region_open_files(&region, 0, &reason) != REGION_OK)
        return !reason.text[0]; /* an error, with a message */
    if (slots_claim(&region, 0, &reason) == REGION_OK) {
        use();
        slots_release(&region);
    }
    scratch_close(&region);
    return 2;
}

static void damage_before(const struct file *quota, const struct file *usage)
{
    int closed = CLOSED / (int) check_one_of();
    int accepted = 0;
    int silent = 0;

    for (int i = 0; i < closed; i++) {
        const struct file *file = i % 2 ? quota : usage;
        int result;

        for (uint64_t more = random_word() % 4; more; more--)
            damage(file);
        if (random_word() % 4 == 0)
            cut(file);
        result = open_damaged(quota, usage);
        accepted += result == 2;
        silent += result == 1;
        restore(file);
        if (result == 2)
            restore(usage);
    }
    printf("%d of %d damaged regions were still whole enough\n", accepted, closed);
    CHECK("some are refused", accepted < closed - closed / 30);
    CHECK("not all", accepted > closed / 30);
    CHECK_EQUAL("refused without a sentence", silent, 0);
}

static void damage_while_open(const struct file *quota, const struct file *usage)
{
    struct region_reason reason;
    int open = OPEN / (int) check_one_of();

    memset(&region, 0, sizeof(region));
    strcpy(region.quota_path, quota->path);
    strcpy(region.usage_path, usage->path);
    CHECK_EQUAL("it opens", region_open_files(&region, 0, &reason), REGION_OK);
    for (int i = 0; i < open; i++) {
        if (region.slot < 0 && slots_claim(&region, 0, &reason) != REGION_OK) {
            restore(usage);
            continue;
        }
        damage(i % 4 ? usage : quota);
        use();
        if (random_word() % 16 == 0)
            slots_release(&region);
        if (random_word() % 64 == 0) {
            restore(quota);
            restore(usage);
        }
    }
    slots_release(&region);
    scratch_close(&region);
    restore(quota);
    restore(usage);
}

static void fuzz(int old)
{
    struct scratch scratch = scratch_make(VMEMORY);
    struct file quota;
    struct file usage;

    if (old)
        scratch_make_old(&scratch, VMEMORY);
    quota = keep_file(scratch.quota, quota_spots, sizeof(quota_spots) / sizeof(*quota_spots));
    usage = keep_file(scratch.usage, usage_spots, sizeof(usage_spots) / sizeof(*usage_spots));
    chmod(scratch.quota, 0444);
    damage_before(&quota, &usage);
    damage_while_open(&quota, &usage);
    CHECK_EQUAL("limits that were never written", wrong_limits, 0);
    CHECK_EQUAL("charges over the limit", over, 0);
    close(quota.fd);
    close(usage.fd);
    free(quota.content);
    free(usage.content);
    scratch_remove(&scratch);
}

int main(void)
{
    fuzz(0);
    fuzz(1);
    return check_end();
}
