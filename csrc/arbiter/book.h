/* SPDX-License-Identifier: Apache-2.0 */
/* book.h -- the books of promises of this machine, and the runs in them that live. */
#ifndef PYVGPU_ARBITER_BOOK_H
#define PYVGPU_ARBITER_BOOK_H

#include "arbiter/run.h"

#include <time.h>

#define BOOKS     2   /* root's, which counts if root made it, and the one for all */
#define BOOK_RUNS 512 /* that are followed; more live without a clock */

struct shelf {               /* a book that is open, from one burial to the next */
    int fd;                  /* -1: it is not there */
    int is_open;             /* it was tried */
    int is_read;             /* all that was in it at... */
    struct timespec changed; /* ...this time is followed */
};

struct books {
    const char *paths[BOOKS];
    struct shelf shelves[BOOKS];
    int clocks; /* the folder of the runs' clocks */
    struct run *runs[BOOK_RUNS];
    unsigned count;
};

/* Look for runs that are new, gone or have other limits; 1 if there are any. */
int books_look(struct books *books);

/* Let go of runs that live no more; 1 if there were any. */
int books_bury(struct books *books);

/* Whether any run of the book with this *index* lives. */
int books_live(const struct books *books, unsigned index);

/* Whether the process is one of a run. */
int books_have(const struct books *books, const struct process *process);

/* Whether any run takes its time from the clocks in *folder*. */
int books_need(const struct books *books, const char *folder);

#endif
