/* SPDX-License-Identifier: Apache-2.0 */
/* fd_marker.c -- locks on descriptors of exported memory; see fd_marker.h.
 *
 * Each descriptor has a byte of its own, out of those of its key: a byte that appears locked
 * through another open file description, and not through the descriptor itself, is that
 * descriptor's.
 */
#include "core/fd_marker.h"
#include "core/cleanup.h"
#include "core/compiler.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* In place of a path, for files that no path opens: the kernel lists the locks of all files. The
 * last slash makes it a path that older shims cannot open, so that they count descriptors as open.
 */
#define LOCK_LIST "/proc/locks/"

#define LIST_READS 4
#define LIST_BYTES 4096
#define TIMEOUT_NS UINT64_C(250000000)

#define MARKER_PATHS sizeof(((struct usage_file *) 0)->fd_marker_path)

#define FIRST_BYTE   (INT64_C(1) << 62)
#define BYTES_OF_KEY 1024 /* as many descriptors of one export can be open at a time */

/* The list of locks is that of all containers, whose keys may be the same. */
static off_t first_byte(const struct usage_file *usage, uint64_t key)
{
    key ^= region_hash(usage->header.region_id, sizeof(usage->header.region_id));
    return FIRST_BYTE + (off_t) ((key >> LINK_HASH_SHIFT) * BYTES_OF_KEY);
}

static struct flock bytes_lock(off_t first, off_t end)
{
    return (struct flock) {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = end - first};
}

/* Find a byte locked by another open file description than *fd*'s: 1 if there is one, 0, or -1. */
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

/* Whether a line of the list is a lock on a byte from *first* on, before *end*. A lock that is
 * waited for has an arrow in front of its kind. */
static int shows_lock(const char *line, off_t first, off_t end)
{
    long long start;

    return sscanf(line, "%*d: OFDLCK %*s %*s %*d %*s %lld", &start) == 1 && start >= first &&
           start < end;
}

/* Read the list once, by at most *size* bytes: whether it shows such a lock, or -1. */
static int read_list(int list, size_t size, off_t first, off_t end)
{
    char text[LIST_BYTES + 1];
    size_t length = 0;
    ssize_t got = lseek(list, 0, SEEK_SET);

    while (got >= 0 && length < size && (got = read(list, text + length, size - length)) > 0) {
        char *line = text;
        char *newline;

        text[length + (size_t) got] = '\0';
        for (; (newline = strchr(line, '\n')); line = newline + 1) {
            *newline = '\0';
            if (shows_lock(line, first, end))
                return 1;
        }
        length = strlen(line);
        memmove(text, line, length);
    }
    return got < 0 || length ? -1 : 0;
}

/* Find out from the list whether a byte is locked: 1, 0, or -1. The kernel does not return the list
 * in one piece, and leaves out a lock that moves from one piece to the one before it meanwhile. So
 * a lock is gone only if several reads, by pieces of different sizes, do not show it. */
static int find_listed(int list, off_t first, off_t end)
{
    int found = 0;

    for (size_t i = 0; i < LIST_READS && !found; i++)
        found = read_list(list, LIST_BYTES - i * LIST_BYTES / 8, first, end);
    return found;
}

int fd_marker_is_early(void)
{
    static uint64_t read_ns;
    uint64_t now = coarse_now_ns();

    if (now - __atomic_load_n(&read_ns, __ATOMIC_RELAXED) < TIMEOUT_NS)
        return 1;
    __atomic_store_n(&read_ns, now, __ATOMIC_RELAXED);
    return 0;
}

void fd_marker_begin(struct fd_marker *marker, struct usage_file *usage, int early)
{
    marker->usage = usage;
    marker->early = early;
    marker->list = -1;
    for (int i = 0; i < MARKER_FILES; i++)
        marker->files[i] = -1;
    marker->error = errno;
    /* open() is a cancellation point, where a thread would leave its charge undecided for ever. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &marker->cancel);
}

void fd_marker_end(struct fd_marker *marker)
{
    for (int i = 0; i < MARKER_FILES; i++)
        cleanup_close_fd(&marker->files[i]);
    pthread_setcancelstate(marker->cancel, NULL);
    errno = marker->error;
}

/* Copy the path that begins at *place* of the list; its length, or 0 if none does. */
static size_t copy_path(const struct usage_file *usage, size_t place, char path[MARKER_PATHS])
{
    if (place >= MARKER_PATHS - 1 ||
        __atomic_load_n(&usage->fd_marker_path[place], __ATOMIC_ACQUIRE) != '/')
        return 0;
    memcpy(path, usage->fd_marker_path + place, MARKER_PATHS - place);
    path[MARKER_PATHS - place - 1] = '\0';
    return strlen(path);
}

/* Open every file of the list: their number, or -1 if one cannot be opened. */
static int open_files(struct fd_marker *marker)
{
    char path[MARKER_PATHS];
    size_t place = 0, length;
    int count = 0;

    while (count < MARKER_FILES && (length = copy_path(marker->usage, place, path)) != 0) {
        int *file = &marker->files[count];

        if (strcmp(path, LOCK_LIST) == 0) {
            path[length - 1] = '\0';
            marker->list = count;
        }
        if (*file < 0)
            *file = region_open_file(path, O_RDONLY | O_NOCTTY);
        if (*file < 0)
            return -1;
        count++;
        place += length + 1;
    }
    return count;
}

static int is_file(const struct stat *file, int descriptor)
{
    struct stat given;

    return fstat(descriptor, &given) == 0 && given.st_dev == file->st_dev &&
           given.st_ino == file->st_ino;
}

/* Whether *path* leads to the file of *descriptor*. A dma-buf or a memfd has a path that opens
 * nothing, since it is in no folder. */
static int leads_to(const char *path, int descriptor)
{
    struct stat found;

    return stat(path, &found) == 0 && is_file(&found, descriptor);
}

/* Append *path* to the list, at *place*. Its first byte is written last, so that a path that has
 * one is complete. 0 if another path stands there now. */
static int write_path(struct usage_file *usage, size_t place, const char *path)
{
    char *written = usage->fd_marker_path + place;
    size_t length = strlen(path);
    char nothing = '\0';

    for (size_t i = 1; place + i < MARKER_PATHS; i++)
        written[i] = '\0';
    for (size_t i = 1; i < length && place + i < MARKER_PATHS; i++)
        written[i] = path[i];
    return __atomic_compare_exchange_n(written, &nothing, path[0], 0, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED);
}

/* Make sure that the list has the path of the file of *descriptor*, or LOCK_LIST if it has none
 * that opens it; 0 if that fails. */
static int learn_path(struct usage_file *usage, int descriptor)
{
    char path[MARKER_PATHS] = "";
    char other[MARKER_PATHS];
    char name[32];
    size_t place = 0, length, found;

    snprintf(name, sizeof(name), "/proc/self/fd/%d", descriptor);
    if (readlink(name, path, sizeof(path) - 1) <= 0 || path[0] != '/')
        return 0;
    if (!leads_to(path, descriptor))
        strcpy(path, LOCK_LIST);
    length = strlen(path);
    for (int file = 0; file < MARKER_FILES;) {
        found = copy_path(usage, place, other);
        if (found && strcmp(path, other) == 0)
            return 1;
        if (!found) {
            if (place + length >= MARKER_PATHS)
                return 0;
            /* Read it again: another process may have been faster. */
            write_path(usage, place, path);
            continue;
        }
        place += found + 1;
        file++;
    }
    return 0;
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

static int is_listed(const struct fd_marker *marker, uint64_t key)
{
    off_t first = first_byte(marker->usage, key);

    return marker->list >= 0 &&
           find_listed(marker->files[marker->list], first, first + BYTES_OF_KEY) > 0;
}

int fd_marker_mark(struct fd_marker *marker, int descriptor, uint64_t key)
{
    if (!learn_path(marker->usage, descriptor) ||
        !lock_byte(descriptor, first_byte(marker->usage, key)))
        return 0;
    /* 0 if the path leads to another file */
    return fd_marker_is(marker, descriptor, key) || is_listed(marker, key);
}

int fd_marker_is_open(struct fd_marker *marker, uint64_t key)
{
    off_t first = first_byte(marker->usage, key), end = first + BYTES_OF_KEY, byte;
    int count = open_files(marker);

    for (int i = 0; i < count; i++)
        if (i != marker->list && find_locked(marker->files[i], first, end, &byte) != 0)
            return 1;
    return count <= 0 ||
           (marker->list >= 0 &&
            (marker->early || find_listed(marker->files[marker->list], first, end) != 0));
}

/* Whether *descriptor* owns the lock of *byte*. Another one's lock may go while we check: so check
 * that no other has it, that it is still locked, and that no other has taken it in between. */
static int is_own_byte(int file, int descriptor, off_t byte)
{
    off_t found;

    return find_locked(descriptor, byte, byte + 1, &found) == 0 &&
           find_locked(file, byte, byte + 1, &found) > 0 &&
           find_locked(descriptor, byte, byte + 1, &found) == 0;
}

/* Whether *descriptor* has one of the bytes from *first* to *end*; others may have some, too. */
static int has_byte(int file, int descriptor, off_t first, off_t end)
{
    off_t byte;

    while (first < end && find_locked(file, first, end, &byte) > 0) {
        if (is_own_byte(file, descriptor, byte))
            return 1;
        if (has_byte(file, descriptor, first, byte))
            return 1;
        first = byte + 1;
    }
    return 0;
}

int fd_marker_is(struct fd_marker *marker, int descriptor, uint64_t key)
{
    off_t first = first_byte(marker->usage, key);
    struct stat file;

    open_files(marker);
    /* Only for the same file: in others no process locks bytes, so a free byte proves nothing. */
    for (int i = 0; i < MARKER_FILES; i++)
        if (i != marker->list && marker->files[i] >= 0 && fstat(marker->files[i], &file) == 0 &&
            is_file(&file, descriptor))
            return has_byte(marker->files[i], descriptor, first, first + BYTES_OF_KEY);
    return 0;
}
