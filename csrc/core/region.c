/* SPDX-License-Identifier: Apache-2.0 */
/* region.c -- finds, checks and maps the files of a region; see region.h. */
#include "core/region.h"
#include "core/cleanup.h"
#include "core/compiler.h"
#include "core/path.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

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
_Static_assert(offsetof(struct usage_file, work) == 197312, "work");
_Static_assert(offsetof(struct usage_file, compute) == 328384, "compute");
_Static_assert(offsetof(struct usage_file, link_end) == 332480, "link end");
_Static_assert(offsetof(struct usage_file, worked_ns) == 332488, "worked");
_Static_assert(offsetof(struct usage_file, links) == 332544, "links");
_Static_assert(sizeof(struct usage_link) == 16, "link");
_Static_assert(offsetof(struct usage_file, idle) == 463616, "idle");
_Static_assert(offsetof(struct usage_file, progress) == 496384, "progress");
_Static_assert(offsetof(struct usage_file, blocks) == 1020672, "blocks");
_Static_assert(sizeof(struct usage_file) == 1028864, "usage");
_Static_assert(offsetof(struct usage_compute, spare) == 48, "compute");
_Static_assert(offsetof(struct clock_file, spare_ns) == 72, "clock");
_Static_assert(offsetof(struct clock_file, alone) == 100, "clock");
_Static_assert(offsetof(struct clock_file, samples) == 128, "clock");
_Static_assert(offsetof(struct clock_file, moments) == CLOCK_PAGE, "clock");
_Static_assert(offsetof(struct clock_file, others_until_ns) == CLOCK_PAGE + 16 * 24, "clock");
_Static_assert(sizeof(struct clock_file) == CLOCK_PAGE + 16 * 24 + 8 + 512 * 4, "clock");

enum region_failure region_fail(struct region_reason *reason, enum region_failure failure,
                                const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason->text, sizeof(reason->text), format, arguments);
    va_end(arguments);
    return failure;
}

int region_open_file(const char *path, int access_mode)
{
    return open(path, access_mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

uint64_t region_hash(const void *bytes, size_t size)
{
    const unsigned char *byte = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t region_checksum(const struct quota_limits *limits)
{
    return region_hash(limits, offsetof(struct quota_limits, checksum));
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

#define STABLE_TRIES 4 /* to read a word and a state that belong together */

uint64_t region_held(const struct region *region, unsigned device, unsigned slot)
{
    const uint64_t *place = &region->usage->charged[device][slot];
    uint64_t word = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    const uint32_t *block;
    uint32_t before, state;
    uint64_t bytes;

    if (likely(!(word & LEDGER_BLOCK)) || !region->blocks || slot >= BLOCK_SLOTS)
        return word & LEDGER_BYTES;
    /* If the state is the same before and after, and so is its number, the word belongs to it: a
     * block that was taken is used again only after the flag was set once more. */
    block = &region->blocks[slot][device];
    state = __atomic_load_n(block, __ATOMIC_SEQ_CST);
    for (int tries = 0; tries < STABLE_TRIES; tries++) {
        before = state;
        word = __atomic_load_n(place, __ATOMIC_SEQ_CST);
        state = __atomic_load_n(block, __ATOMIC_SEQ_CST);
        if (state == before)
            break;
    }
    bytes = word & LEDGER_BYTES;
    if (!(word & LEDGER_BLOCK) || (state & BLOCK_STATE) == BLOCK_USED || bytes < BLOCK_BYTES)
        return bytes;
    return bytes - BLOCK_BYTES;
}

/* Identifies one of the two files: its magic, and its size in the known layouts. */
struct kind {
    uint64_t magic;
    size_t size[REGION_LAYOUT + 1];
};

static const struct kind quota_kind = {QUOTA_MAGIC,
                                       {[1] = offsetof(struct quota_file, extra_total),
                                        [2] = sizeof(struct quota_file),
                                        [3] = sizeof(struct quota_file),
                                        [4] = sizeof(struct quota_file),
                                        [5] = sizeof(struct quota_file)}};
static const struct kind usage_kind = {USAGE_MAGIC,
                                       {[1] = offsetof(struct usage_file, link_end),
                                        [2] = offsetof(struct usage_file, idle),
                                        [3] = offsetof(struct usage_file, progress),
                                        [4] = offsetof(struct usage_file, blocks),
                                        [5] = sizeof(struct usage_file)}};

static const uint64_t no_extra[REGION_DEVICES];

/* Check size, magic and layout of *path*, then map it; *layout* says how much of it there is. */
static enum region_failure map_file(const char *path, int fd, const struct kind *kind,
                                    int protection, void **mapped, uint32_t *layout,
                                    struct region_reason *reason)
{
    struct stat status;
    struct region_header header;
    size_t size = kind->size[REGION_LAYOUT];

    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return region_fail(reason, REGION_UNREADABLE, "%s is not a regular file", path);
    if ((size_t) status.st_size < sizeof(header) ||
        pread(fd, &header, sizeof(header), 0) != (ssize_t) sizeof(header))
        return region_fail(reason, REGION_DAMAGED, "%s is too short (%lld bytes, %zu are needed)",
                           path, (long long) status.st_size, size);
    if (header.magic != kind->magic)
        return region_fail(reason, REGION_DAMAGED, "%s is not a file of that kind (wrong magic)",
                           path);
    if (header.layout < REGION_LAYOUT_OLD || header.layout > REGION_LAYOUT)
        return region_fail(reason, REGION_VERSION, "%s has layout %u, this shim supports %u to %u",
                           path, header.layout, REGION_LAYOUT_OLD, REGION_LAYOUT);
    size = kind->size[header.layout];
    if (header.size != size || (size_t) status.st_size < size)
        return region_fail(reason, REGION_DAMAGED, "%s is too short (%lld bytes, %zu are needed)",
                           path, (long long) status.st_size, size);
    *mapped = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (*mapped == MAP_FAILED)
        return region_fail(reason, REGION_UNREADABLE, "%s cannot be mapped: %s", path,
                           strerror(errno));
    *layout = header.layout;
    return REGION_OK;
}

static enum region_failure open_quota(struct region *region, int read_only_mount, uint32_t *layout,
                                      struct region_reason *reason)
{
    const char *path = region->quota_path;
    cleanup_close int fd = region_open_file(path, O_RDONLY);
    enum region_failure failure;
    struct statvfs filesystem;
    struct stat status;

    if (fd < 0)
        return region_fail(reason, errno == ENOENT ? REGION_MISSING : REGION_UNREADABLE,
                           "no quota: %s: %s", path, strerror(errno));
    if (read_only_mount && (fstatvfs(fd, &filesystem) != 0 || !(filesystem.f_flag & ST_RDONLY)))
        return region_fail(reason, REGION_WRITABLE, "%s is not on a read-only mount", path);
    if (!read_only_mount && (fstat(fd, &status) != 0 || (status.st_mode & 0222)))
        return region_fail(reason, REGION_WRITABLE, "%s is writable (mode %o), it must be 0444",
                           path, (unsigned) status.st_mode & 07777);
    failure = map_file(path, fd, &quota_kind, PROT_READ, (void **) &region->quota, layout, reason);
    region->extra_total = failure || *layout < 2 ? no_extra : region->quota->extra_total;
    return failure;
}

static enum region_failure open_usage(struct region *region, uint32_t *layout,
                                      struct region_reason *reason)
{
    const char *path = region->usage_path;
    cleanup_close int fd = region_open_file(path, O_RDWR);
    enum region_failure failure;

    if (fd < 0)
        return region_fail(reason, errno == ENOENT ? REGION_MISSING : REGION_UNREADABLE,
                           "no usage file: %s: %s", path, strerror(errno));
    failure = map_file(path, fd, &usage_kind, PROT_READ | PROT_WRITE, (void **) &region->usage,
                       layout, reason);
    region->links = failure || *layout < 2 ? NULL : region->usage->links;
    region->idle = failure || *layout < 3 ? NULL : region->usage->idle;
    region->progress = failure || *layout < 4 ? NULL : region->usage->progress;
    region->blocks = failure || *layout < 5 ? NULL : region->usage->blocks;
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
        failure = region_fail(reason, REGION_DAMAGED, "%s and %s do not belong together",
                              region->quota_path, region->usage_path);
    else if (!region_limits(region->quota, &limits))
        failure = region_fail(reason, REGION_DAMAGED, "%s holds no valid limits (wrong checksum)",
                              region->quota_path);
    region->device_count = limits.device_count;
    if (failure) {
        munmap((void *) region->quota, quota_kind.size[quota_layout]);
        munmap(region->usage, usage_kind.size[usage_layout]);
    }
    return failure;
}

/* The region beside the folder of the library. Its paths are opened again later, when the program
 * may have changed its working directory, so they must be absolute. */
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
        return region_fail(reason, REGION_MISSING, "cannot resolve %s: %s", library_path,
                           strerror(-result));
    folder = (int) (strrchr(library, '/') - library);
    if ((size_t) folder + sizeof("/../region/clock.") > sizeof(region->quota_path))
        return region_fail(reason, REGION_MISSING, "the path of %s is too long", library_path);
    snprintf(region->quota_path, sizeof(region->quota_path), "%.*s/../region/quota", folder,
             library);
    snprintf(region->usage_path, sizeof(region->usage_path), "%.*s/../region/usage", folder,
             library);
    snprintf(region->clock_path, sizeof(region->clock_path), "%.*s/../region/clock.", folder,
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
        strcpy(region->clock_path, "/run/pyvgpu-clock/");
        return region_open_files(region, 1, reason);
    }
    failure = find_beside(region, library_path, reason);
    return failure ? failure : region_open_files(region, 0, reason);
}
