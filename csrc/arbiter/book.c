/* SPDX-License-Identifier: Apache-2.0 */
/* book.c -- finds runs in the books; see book.h. */
#include "arbiter/book.h"
#include "cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static int is_of_root(int book, const struct stat *status)
{
    struct stat above;

    if (status->st_uid == 0)
        return 1;
    /* In a user namespace without root, root's book and the folder it is in are "nobody's". */
    return fstatat(book, "..", &above, 0) == 0 && above.st_uid == status->st_uid &&
           !(above.st_mode & (S_IWGRP | S_IWOTH));
}

/* As pyvgpu/promises.py opens a book: only a sticky folder is one. */
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

/* 1 if it is a run that is new. */
static int meet(struct books *books, unsigned index, int book, const char *id)
{
    struct run *run = find_run(books, index, id);
    int new = !run;

    if (new && books->count < BOOK_RUNS)
        run = run_open(book, id);
    if (!run)
        return 0;
    run->found = 1;
    if (new) {
        run->book = index;
        books->runs[books->count++] = run;
    }
    return new;
}

static int read_book(struct books *books, unsigned index)
{
    int book = open_book(books, index);
    DIR *folder = book < 0 ? NULL : fdopendir(book);
    const struct dirent *entry;
    int changed = 0;

    if (!folder) {
        cleanup_close_fd(&book);
        return 0;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (run_is_named(entry->d_name))
            changed |= meet(books, index, book, entry->d_name);
    }
    closedir(folder);
    return changed;
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
        changed |= read_book(books, index);
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
