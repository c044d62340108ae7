/* SPDX-License-Identifier: Apache-2.0 */
/* scratch_region.h -- fixture: a region in a temporary folder, written as the node side does. */
#ifndef PYVGPU_TESTS_SCRATCH_REGION_H
#define PYVGPU_TESTS_SCRATCH_REGION_H

#include "core/region.h"
#include "core/slots.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct scratch {
    char folder[64];
    char quota[128];
    char usage[128];
    char driver[128]; /* stands for the driver's file, whose descriptors carry exports */
};

static inline void scratch_write(const char *path, const void *content, size_t size, mode_t mode)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    if (fd < 0 || write(fd, content, size) != (ssize_t) size || fchmod(fd, mode) != 0) {
        perror(path);
        exit(2);
    }
    close(fd);
}

static inline struct quota_limits scratch_limits(uint64_t vmemory)
{
    struct quota_limits limits = {.generation = 1, .device_count = 1, .driver_release = "1.2.3"};

    memset(limits.devices[0].uuid, 0xab, sizeof(limits.devices[0].uuid));
    limits.devices[0].vmemory = vmemory;
    limits.devices[0].vcore = 100;
    limits.checksum = region_checksum(&limits);
    return limits;
}

static inline void scratch_quota(const struct scratch *scratch, const struct quota_limits *limits)
{
    static struct quota_file quota;

    memset(&quota, 0, sizeof(quota));
    quota.header = (struct region_header) {QUOTA_MAGIC, REGION_LAYOUT, sizeof(quota), {7}};
    quota.limits[0] = *limits;
    unlink(scratch->quota);
    scratch_write(scratch->quota, &quota, sizeof(quota), 0444);
}

static inline void scratch_usage(const struct scratch *scratch)
{
    static struct usage_file usage;

    usage.header = (struct region_header) {USAGE_MAGIC, REGION_LAYOUT, sizeof(usage), {7}};
    scratch_write(scratch->usage, &usage, sizeof(usage), 0644);
}

static inline struct scratch scratch_make(uint64_t vmemory)
{
    struct scratch scratch = {.folder = "/tmp/pyvgpu-test-XXXXXX"};
    struct quota_limits limits = scratch_limits(vmemory);

    if (!mkdtemp(scratch.folder))
        exit(2);
    snprintf(scratch.quota, sizeof(scratch.quota), "%s/quota", scratch.folder);
    snprintf(scratch.usage, sizeof(scratch.usage), "%s/usage", scratch.folder);
    snprintf(scratch.driver, sizeof(scratch.driver), "%s/driver", scratch.folder);
    scratch_quota(&scratch, &limits);
    scratch_usage(&scratch);
    return scratch;
}

/* Create both files in layout 1; its size is written out here, not taken from region.h. */
static inline void scratch_make_old(const struct scratch *scratch, uint64_t vmemory)
{
    static unsigned char quota[133008];
    static unsigned char usage[332480];
    struct region_header header = {QUOTA_MAGIC, 1, sizeof(quota), {7}};
    struct quota_limits limits = scratch_limits(vmemory);

    memcpy(quota, &header, 32);
    memcpy(quota + 32, &limits, 952);
    unlink(scratch->quota);
    scratch_write(scratch->quota, quota, sizeof(quota), 0444);
    header = (struct region_header) {USAGE_MAGIC, 1, sizeof(usage), {7}};
    memcpy(usage, &header, 32);
    scratch_write(scratch->usage, usage, sizeof(usage), 0644);
}

/* Unmap the region. The shim never does: it keeps its region for the life of the process. */
static inline void scratch_close(struct region *region)
{
    size_t quota =
        region->extra_total == region->quota->extra_total ? sizeof(*region->quota) : 133008;
    size_t usage = region->links ? sizeof(*region->usage) : 332480;

    munmap((void *) region->quota, quota);
    munmap(region->usage, usage);
}

/* A descriptor as a driver returns it for an export. */
static inline int scratch_descriptor(const struct scratch *scratch)
{
    int fd = open(scratch->driver, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0) {
        perror(scratch->driver);
        exit(2);
    }
    return fd;
}

static inline void scratch_remove(const struct scratch *scratch)
{
    unlink(scratch->quota);
    unlink(scratch->usage);
    unlink(scratch->driver);
    rmdir(scratch->folder);
}

static inline enum region_failure scratch_open(const struct scratch *scratch, struct region *region,
                                               struct region_reason *reason)
{
    memset(region, 0, sizeof(*region));
    strcpy(region->quota_path, scratch->quota);
    strcpy(region->usage_path, scratch->usage);
    return region_open_files(region, 0, reason);
}

#endif
