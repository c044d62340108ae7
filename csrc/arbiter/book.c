/* SPDX-License-Identifier: Apache-2.0 */
/* book.c -- scans the books for runs; see book.h. */
#include "arbiter/book.h"
#include "core/cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define SETTLED_NS UINT64_C(100000000) /* much longer than the granularity of file times */

static int is_of_root(int book, const struct stat *status)
{
    struct stat above;

    if (status->st_uid == 0)
        return 1;
    /* In a user namespace without root, root's book and its parent appear as the overflow UID's. */
    return fstatat(book, "..", &above, 0) == 0 && above.st_uid == status->st_uid &&
           !(above.st_mode & (S_IWGRP | S_IWOTH));
}

/* Like pyvgpu/machine/reservations.py, accept only a sticky folder as a book. */
static int open_book(const struct books *books, unsigned index)
{
    const char *path = books->paths[index];
    int book = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    struct stat status;

    if (book < 0)
        return -1;
    if (fstat(book, &status) == 0 && (status.st_mode & S_ISVTX) &&
        (index > 0 || is_of_root(book, &status)))
        return book;
    close(book);
    return -1;
}

static struct run *find_run(const struct books *books, unsigned book, const char *id)
{
    for (unsigned i = 0; i < books->count; i++) {
        if (books->runs[i]->book == book && strcmp(books->runs[i]->id, id) == 0)
            return books->runs[i];
    }
    return NULL;
}

/* 1 if the entry is a new run. One that is not a run yet may become one, so the book is re-read. */
static int meet(struct books *books, unsigned index, const char *id)
{
    struct run *run = find_run(books, index, id);
    int new = !run;

    if (new && books->count < BOOK_RUNS)
        run = run_open(books->shelves[index].fd, id);
    if (!run) {
        books->shelves[index].is_read = 0;
        return 0;
    }
    run->found = 1;
    if (new) {
        run->book = index;
        books->runs[books->count++] = run;
    }
    return new;
}

static int read_book(struct books *books, unsigned index)
{
    int book = openat(books->shelves[index].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = book < 0 ? NULL : fdopendir(book);
    const struct dirent *entry;
    int changed = 0;

    if (!folder) {
        cleanup_close_fd(&book);
        return 0;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (run_is_named(entry->d_name))
            changed |= meet(books, index, entry->d_name);
    }
    closedir(folder);
    return changed;
}

static uint64_t in_ns(struct timespec time)
{
    return (uint64_t) time.tv_sec * UINT64_C(1000000000) + (uint64_t) time.tv_nsec;
}

/* Whether no run came or went since the whole book was read. A folder that changed just now may
 * change again and keep the same modification time. */
static int is_as_it_was(struct shelf *shelf)
{
    struct stat status;
    struct timespec now;
    int same;

    if (fstat(shelf->fd, &status) != 0)
        return 0;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    same = shelf->is_read && in_ns(status.st_mtim) == in_ns(shelf->changed);
    shelf->changed = status.st_mtim;
    shelf->is_read = in_ns(now) > in_ns(status.st_mtim) + SETTLED_NS;
    return same;
}

static int look_into(struct books *books, unsigned index)
{
    struct shelf *shelf = &books->shelves[index];

    if (!shelf->is_open)
        shelf->fd = open_book(books, index);
    shelf->is_open = 1;
    if (shelf->fd < 0)
        return 0;
    if (!is_as_it_was(shelf))
        return read_book(books, index);
    for (unsigned i = 0; i < books->count; i++)
        books->runs[i]->found |= books->runs[i]->book == index;
    return 0;
}

/* Other folders may have taken their places by the next scan. */
static void close_books(struct books *books)
{
    for (unsigned index = 0; index < BOOKS; index++) {
        if (books->shelves[index].is_open)
            cleanup_close_fd(&books->shelves[index].fd);
        books->shelves[index] = (struct shelf) {.fd = -1};
    }
}

static void drop(struct books *books, unsigned i)
{
    run_close(books->runs[i], books->clocks);
    books->runs[i] = books->runs[--books->count];
}

int books_look(struct books *books)
{
    int changed = 0;

    for (unsigned i = 0; i < books->count; i++)
        books->runs[i]->found = 0;
    for (unsigned index = 0; index < BOOKS; index++)
        changed |= look_into(books, index);
    for (unsigned i = books->count; i-- > 0;) {
        int refreshed = books->runs[i]->found ? run_refresh(books->runs[i]) : -1;

        changed |= refreshed != 0;
        if (refreshed < 0)
            drop(books, i);
    }
    return changed;
}

int books_bury(struct books *books)
{
    int changed = 0;

    close_books(books);
    for (unsigned i = books->count; i-- > 0;) {
        if (run_lives(books->runs[i])) {
            run_bury(books->runs[i]);
        } else {
            drop(books, i);
            changed = 1;
        }
    }
    return changed;
}

int books_live(const struct books *books, unsigned index)
{
    int live = 0;

    for (unsigned i = 0; i < books->count && !live; i++)
        live = books->runs[i]->book == index;
    return live;
}

int books_have(const struct books *books, const struct process *process)
{
    for (unsigned i = 0; i < books->count; i++)
        if (run_has(books->runs[i], process))
            return 1;
    return 0;
}

int books_need(const struct books *books, const char *folder)
{
    int need = 0;

    for (unsigned index = 0; index < BOOKS; index++) {
        cleanup_close int book = open_book(books, index);

        for (unsigned i = 0; i < books->count && book >= 0 && !need; i++)
            need = books->runs[i]->book == index && run_links_to(books->runs[i], book, folder);
    }
    return need;
}
