/* SPDX-License-Identifier: Apache-2.0 */
/* run.h -- one promise of the book, as the arbiter follows it.
 *
 * Its files belong to another user, who may do anything with them at any time. So they are looked
 * at with care (peek.h), believed only if they and their folder are one user's own and no links (as
 * pyvgpu/promises.py believes them), and nothing is waited for.
 */
#ifndef PYVGPU_ARBITER_RUN_H
#define PYVGPU_ARBITER_RUN_H

#include "arbiter/fluid.h"
#include "arbiter/peek.h"
#include "arbiter/process.h"
#include "region.h"

#define RUN_ID 16 /* letters */

struct device;

struct portion { /* of one device */
    uint8_t uuid[16];
    struct device *device; /* NULL if there are too many */
    struct fluid_tenant tenant;
    struct clock_file *page; /* its clock; NULL while none could be made */
    uint64_t waits;
};

struct run {
    char id[RUN_ID + 1];
    unsigned book; /* the place of its book among all of them */
    int quota;     /* open, for their locks */
    int usage;
    struct peek limits; /* what they say */
    struct peek published;
    uint64_t generation; /* of the limits that are in the portions */
    unsigned slots;      /* that are looked at: all that were ever used, and some more */
    unsigned portion_count;
    struct portion portions[REGION_DEVICES];
    int found; /* by the last look into its book */
};

/* Whether an entry of a book is called as runs are. */
int run_is_named(const char *name);

/* Follow the run *id* in the open *book*; NULL if it does not live or is not to be believed. */
struct run *run_open(int book, const char *id);

/* Its clocks in the open folder *clocks* go, too. */
void run_close(struct run *run, int clocks);

/* Show what the model found out: in a clock for each device, which is made if it is not there. */
void run_show(struct run *run, unsigned index, int clocks, const struct fluid *fluid);

/* Whether its supervisor or any of its processes lives, which the kernel alone knows. */
int run_lives(const struct run *run);

/* Whether its first clock is a link into the *folder*. */
int run_links_to(const struct run *run, int book, const char *folder);

/* Look for new limits and slots. 1: there are some, 0: none, -1: the files are no longer whole. */
int run_refresh(struct run *run);

/* Let the model see what the processes publish of the device that is the quota's *index*th. */
void run_see(struct run *run, unsigned index, struct fluid *fluid, uint64_t now);

/* Whether any of its processes has work on that device, *passed_ns* after the last tick. */
int run_has_work(const struct run *run, unsigned index, uint64_t passed_ns, uint64_t now);

/* Whether one of its processes is this one. */
int run_has(const struct run *run, const struct process *process);

/* The work of processes that are dead is none. */
void run_bury(struct run *run);

#endif
