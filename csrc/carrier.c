/* SPDX-License-Identifier: Apache-2.0 */
/* carrier.c -- locks on descriptors of exported memory; see carrier.h.
 *
 * All such descriptors are of one file, the driver's. Its path is kept and not a descriptor of it,
 * for a program may close what it does not know.
 */
#include "carrier.h"
#include "cleanup.h"
#include "compiler.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BYTE (INT64_C(1) << 62)

static struct {
    char path[PATH_MAX];
    dev_t device;
    ino_t inode;
} file;
enum { NOTHING, LEARNING, LEARNT };
static int knowledge; /* of the file */

/* A lock on *count* links' bytes from *place* on. Regions have bytes of their own. */
static struct flock link_lock(const struct region *region, short type, unsigned place,
                              unsigned count)
{
    uint64_t id;

    memcpy(&id, region->usage->header.region_id, sizeof(id));
    return (struct flock) {
        .l_type = type,
        .l_whence = SEEK_SET,
        .l_start = FIRST_BYTE + (off_t) ((id >> 16) * REGION_LINKS + place),
        .l_len = count,
    };
}

static int is_locked(const struct region *region, int fd, unsigned place, unsigned count)
{
    struct flock lock = link_lock(region, F_WRLCK, place, count);

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Open what is at *path* if that is the file of *status*; else -1. */
static int open_same(const char *path, const struct stat *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat found;

    if (fd < 0 || (fstat(fd, &found) == 0 && found.st_dev == status->st_dev &&
                   found.st_ino == status->st_ino))
        return fd;
    close(fd);
    return -1;
}

static int open_file(void)
{
    struct stat status;

    if (__atomic_load_n(&knowledge, __ATOMIC_ACQUIRE) != LEARNT)
        return -1;
    status.st_dev = file.device;
    status.st_ino = file.inode;
    return open_same(file.path, &status);
}

/* Keep *path* of the file, if none is known yet. */
static void keep(const char *path, const struct stat *status)
{
    int nothing = NOTHING;

    if (!__atomic_compare_exchange_n(&knowledge, &nothing, LEARNING, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return;
    strcpy(file.path, path);
    file.device = status->st_dev;
    file.inode = status->st_ino;
    __atomic_store_n(&knowledge, LEARNT, __ATOMIC_RELEASE);
}

/* Open the file of *descriptor* once more, by its path; -1 if it has none. */
static int open_again(int descriptor, char path[PATH_MAX], struct stat *status)
{
    char name[32];
    ssize_t length;

    snprintf(name, sizeof(name), "/proc/self/fd/%d", descriptor);
    length = readlink(name, path, PATH_MAX - 1);
    if (length < 0 || fstat(descriptor, status) != 0)
        return -1;
    path[length] = '\0';
    return open_same(path, status);
}

void carrier_learn(const struct region *region, int descriptor)
{
    char path[PATH_MAX];
    struct stat status;
    cleanup_close int fd = -1;

    if (__atomic_load_n(&knowledge, __ATOMIC_ACQUIRE) == LEARNT)
        return;
    fd = open_again(descriptor, path, &status);
    if (fd >= 0 && is_locked(region, fd, 0, REGION_LINKS))
        keep(path, &status);
}

int carrier_mark(const struct region *region, int descriptor, unsigned place)
{
    struct flock lock = link_lock(region, F_RDLCK, place, 1);
    char path[PATH_MAX];
    struct stat status;
    cleanup_close int fd = open_again(descriptor, path, &status);

    if (fd < 0 || fcntl(descriptor, F_OFD_SETLK, &lock) != 0)
        return 0;
    keep(path, &status);
    return carrier_look(region, place) == CARRIER_OPEN; /* unless this is another file */
}

enum carrier carrier_look(const struct region *region, unsigned place)
{
    cleanup_close int fd = open_file();

    if (fd < 0)
        return CARRIER_UNKNOWN;
    return is_locked(region, fd, place, 1) ? CARRIER_OPEN : CARRIER_CLOSED;
}
