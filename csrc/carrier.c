/* SPDX-License-Identifier: Apache-2.0 */
/* carrier.c -- locks on descriptors of exported memory; see carrier.h.
 *
 * Each descriptor has a byte alone, out of those of its key: one that finds a byte locked through
 * another opening of the file, and not through the descriptor itself, knows whose it is.
 */
#include "carrier.h"
#include "cleanup.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FIRST_BYTE   (INT64_C(1) << 62)
#define BYTES_OF_KEY 1024 /* as many descriptors of one export can be open at a time */

static off_t first_byte(uint64_t key)
{
    return FIRST_BYTE + (off_t) ((key >> LINK_HASH_SHIFT) * BYTES_OF_KEY);
}

static struct flock bytes_lock(off_t first, off_t end)
{
    return (struct flock) {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = end - first};
}

/* Find a byte that another opening than *fd* has locked: 1 if there is one, 0 if not, or -1. */
static int find_locked(int fd, off_t first, off_t end, off_t *byte)
{
    struct flock lock = bytes_lock(first, end);

    if (fcntl(fd, F_OFD_GETLK, &lock) != 0)
        return -1;
    if (lock.l_type == F_UNLCK)
        return 0;
    *byte = lock.l_start > first ? lock.l_start : first;
    return *byte < end;
}

void carrier_begin(struct carrier *carrier, struct usage_file *usage)
{
    carrier->usage = usage;
    carrier->file = -1;
    carrier->error = errno;
    /* open() would end a cancelled thread here, with its charge undecided for ever. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &carrier->cancel);
}

void carrier_end(struct carrier *carrier)
{
    cleanup_close_fd(&carrier->file);
    pthread_setcancelstate(carrier->cancel, NULL);
    errno = carrier->error;
}

static int open_file(struct carrier *carrier)
{
    char path[sizeof(carrier->usage->carrier_path)];

    if (carrier->file >= 0)
        return 1;
    if (__atomic_load_n(carrier->usage->carrier_path, __ATOMIC_ACQUIRE) != '/')
        return 0;
    memcpy(path, carrier->usage->carrier_path, sizeof(path));
    path[sizeof(path) - 1] = '\0';
    carrier->file = region_open_file(path, O_RDONLY | O_NOCTTY);
    return carrier->file >= 0;
}

static int is_file(const struct stat *file, int descriptor)
{
    struct stat given;

    return fstat(descriptor, &given) == 0 && given.st_dev == file->st_dev &&
           given.st_ino == file->st_ino;
}

/* Whether *path* leads to what *descriptor* is open on. A dma-buf or a memfd has a path that opens
 * nothing, since it is a file of no folder. */
static int leads_to(const char *path, int descriptor)
{
    struct stat found;

    return stat(path, &found) == 0 && is_file(&found, descriptor);
}

/* Write down the path of the file of *descriptor*, unless one is written already. The first byte is
 * written last, so that a path that begins is whole. 0 if this file is the one that is written. */
static int learn_path(struct usage_file *usage, int descriptor)
{
    char path[sizeof(usage->carrier_path)] = "";
    char name[32];

    snprintf(name, sizeof(name), "/proc/self/fd/%d", descriptor);
    if (readlink(name, path, sizeof(path) - 1) <= 0 || path[0] != '/')
        return -1;
    if (!__atomic_load_n(usage->carrier_path, __ATOMIC_ACQUIRE)) {
        if (!leads_to(path, descriptor))
            return -1;
        memcpy(usage->carrier_path + 1, path + 1, sizeof(path) - 1);
        __atomic_store_n(usage->carrier_path, path[0], __ATOMIC_RELEASE);
    }
    return memcmp(usage->carrier_path, path, sizeof(path));
}

/* Lock a byte that no other descriptor of the key has. */
static int lock_byte(int descriptor, off_t first)
{
    static unsigned next;

    for (int tries = 0; tries < BYTES_OF_KEY; tries++) {
        off_t byte = first + __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % BYTES_OF_KEY;
        struct flock lock = bytes_lock(byte, byte + 1);

        if (fcntl(descriptor, F_OFD_SETLK, &lock) == 0)
            return 1;
        if (errno != EAGAIN && errno != EACCES)
            return 0;
    }
    return 0;
}

int carrier_mark(struct carrier *carrier, int descriptor, uint64_t key)
{
    return learn_path(carrier->usage, descriptor) == 0 && lock_byte(descriptor, first_byte(key)) &&
           open_file(carrier) &&
           carrier_is(carrier, descriptor, key); /* not if the path leads to another file */
}

int carrier_is_open(struct carrier *carrier, uint64_t key)
{
    off_t byte;

    return !open_file(carrier) ||
           find_locked(carrier->file, first_byte(key), first_byte(key) + BYTES_OF_KEY, &byte) != 0;
}

/* Whether the lock of *byte* is that of *descriptor*: another one's may go while it is asked for.
 * So no other has it, then it is still locked, and no other has taken it in between. */
static int is_own_byte(const struct carrier *carrier, int descriptor, off_t byte)
{
    off_t found;

    return find_locked(descriptor, byte, byte + 1, &found) == 0 &&
           find_locked(carrier->file, byte, byte + 1, &found) > 0 &&
           find_locked(descriptor, byte, byte + 1, &found) == 0;
}

/* Whether *descriptor* has one of the bytes from *first* to *end*, of which others may be others'.
 */
static int has_byte(const struct carrier *carrier, int descriptor, off_t first, off_t end)
{
    off_t byte;

    while (first < end && find_locked(carrier->file, first, end, &byte) > 0) {
        if (is_own_byte(carrier, descriptor, byte))
            return 1;
        if (has_byte(carrier, descriptor, first, byte))
            return 1;
        first = byte + 1;
    }
    return 0;
}

/* Nobody locks bytes of another file, which says nothing about whose they are. */
static int is_of_file(const struct carrier *carrier, int descriptor)
{
    struct stat file;

    return fstat(carrier->file, &file) == 0 && is_file(&file, descriptor);
}

int carrier_is(struct carrier *carrier, int descriptor, uint64_t key)
{
    return open_file(carrier) && is_of_file(carrier, descriptor) &&
           has_byte(carrier, descriptor, first_byte(key), first_byte(key) + BYTES_OF_KEY);
}
