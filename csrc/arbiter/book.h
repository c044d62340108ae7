/* SPDX-License-Identifier: Apache-2.0 */
/* book.h -- the books of promises of this machine, and the runs in them that live. */
#ifndef PYVGPU_ARBITER_BOOK_H
#define PYVGPU_ARBITER_BOOK_H

#include "arbiter/run.h"

#define BOOKS     2   /* root's, which counts if root made it, and the one for all */
#define BOOK_RUNS 512 /* that are followed; more live without a clock */

struct books {
    const char *paths[BOOKS];
    int clocks; /* the folder of the runs' clocks */
    struct run *runs[BOOK_RUNS];
    unsigned count;
};

/* Look for runs that are new, gone or have other limits; 1 if there are any. */
int books_look(struct books *books);

/* Let go of runs that live no more; 1 if there were any. */
int books_bury(struct books *books);

/* Whether any run takes its time from the clocks in *folder*. */
int books_need(const struct books *books, const char *folder);

#endif
