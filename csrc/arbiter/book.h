/* SPDX-License-Identifier: Apache-2.0 */
/* book.h -- the machine's reservation directories ("books") and the live runs in them.
 *
 * A book has one folder per run, with the run's quota and usage files
 * (pyvgpu/machine/reservations.py). */
#ifndef PYVGPU_ARBITER_BOOK_H
#define PYVGPU_ARBITER_BOOK_H

#include "arbiter/run.h"

#include <time.h>

#define BOOKS     2   /* root's, which counts only if root owns it, and the one for all users */
#define BOOK_RUNS 512 /* runs followed; further ones have no clock */

struct shelf {               /* an open book, kept from one books_bury() to the next */
    int fd;                  /* -1: it does not exist */
    int is_open;             /* opening it was tried */
    int is_read;             /* every run in it at... */
    struct timespec changed; /* ...this modification time is followed */
};

struct books {
    const char *paths[BOOKS];
    struct shelf shelves[BOOKS];
    int clocks; /* the folder of the runs' clock files */
    struct run *runs[BOOK_RUNS];
    unsigned count;
};

/* Find runs that are new, gone or have new limits; 1 if there are any. */
int books_look(struct books *books);

/* Drop dead runs, and clear the work of dead processes; 1 if a run was dropped. */
int books_bury(struct books *books);

/* Whether the book with this *index* has a live run. */
int books_live(const struct books *books, unsigned index);

/* Whether the process belongs to a run. */
int books_have(const struct books *books, const struct process *process);

/* Whether any run reads its clocks from *folder*. */
int books_need(const struct books *books, const char *folder);

#endif
