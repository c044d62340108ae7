/* SPDX-License-Identifier: Apache-2.0 */
/* arbiter.h -- keeps a clock for each run and device of which it has a share.
 *
 * One per machine, in a folder of its own in a book, which is its user's alone: the file `arbiter`,
 * whose lock says that it lives and whose beat that it is not frozen, and the runs' clocks, each
 * called by the run and the place of the device in its quota.
 */
#ifndef PYVGPU_ARBITER_H
#define PYVGPU_ARBITER_H

#include "arbiter/book.h"

#include <signal.h>
#include <sys/types.h>

#define ARBITER_DEVICES 256 /* that are followed; of more there is no clock */

/* Processes that belong to no run, all together, as the model has them: a container without a share
 * whose one process works as much as NVML says that the device does beyond the runs' work. */
struct outsiders {
    struct fluid_tenant tenant;
    struct fluid_lane lane;
    uint64_t seen_ns;  /* the last look of NVML's that was judged */
    uint64_t until_ns; /* so long they count */
    double part;       /* of the device's time; 0: there are none */
};

struct device {
    uint8_t uuid[16];
    struct fluid fluid;
    struct others others;
    struct fluid_tenant *tenants[BOOK_RUNS + 1];
    unsigned count;
    double used;    /* of its time by the runs, of late */
    int low;        /* runs of low priority share it, */
    uint32_t above; /* as in the clock_file of runs of low priority; 0: no others do */
    int watched;    /* both do, and those of low priority have work */
    struct outsiders outsiders;
};

struct arbiter {
    struct books books;
    const char *path; /* of the folder */
    int folder;
    int lock;
    struct fluid beat;
    struct clock_file *page; /* of the file that is locked */
    struct device *devices[ARBITER_DEVICES];
    unsigned count;
    uint64_t looked_ns; /* for runs that came or changed, */
    uint64_t buried_ns; /* and for those that are gone */
};

/* The failure of arbiter_take() where another arbiter has the folder. */
extern const char arbiter_other[];

/* Take the folder at *path*, and make it if it is not there: NULL, or why it cannot be had. */
const char *arbiter_take(struct arbiter *arbiter, const char *path);

/* Keep the clocks until *ended*, or nobody needs them; while our parent is *keeper*, who looks
 * after the runs of the first book, somebody does. 0: nobody keeps us. */
void arbiter_keep(struct arbiter *arbiter, pid_t keeper, const volatile sig_atomic_t *ended);

/* Remove all that was made. */
void arbiter_leave(struct arbiter *arbiter);

#endif
