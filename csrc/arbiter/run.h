/* SPDX-License-Identifier: Apache-2.0 */
/* run.h -- one run, as the arbiter follows it: its quota, usage and clock files.
 *
 * Quota and usage belong to another user, who may do anything with them at any time. So they are
 * read through peek.h, trusted only if they and their folder belong to the same user and are no
 * links (the rule of pyvgpu/machine/reservations.py), and never waited for.
 */
#ifndef PYVGPU_ARBITER_RUN_H
#define PYVGPU_ARBITER_RUN_H

#include "arbiter/lending.h"
#include "arbiter/peek.h"
#include "arbiter/process.h"
#include "core/region.h"

#define RUN_ID 16 /* letters */

struct device;

struct portion { /* the run's share of one device */
    uint8_t uuid[16];
    struct device *device; /* NULL if there are too many */
    struct lending_container tenant;
    struct clock_file *page; /* its clock; NULL while none could be created */
    uint64_t waits;
};

struct run {
    char id[RUN_ID + 1];
    unsigned registry; /* index of its registry */
    int quota;         /* both files stay open, for their locks */
    int usage;
    struct peek limits;    /* the quota file's content, */
    struct peek published; /* and the usage file's */
    uint64_t generation;   /* of the limits that are in the portions */
    unsigned slots;        /* slots that are read: all that were ever used, and some more */
    int is_suspended;      /* it has no work, and gets no time */
    unsigned portion_count;
    struct portion portions[REGION_DEVICES];
    int found; /* in the last scan of its registry */
};

/* Whether the name of a registry's entry is a run ID. */
int run_is_named(const char *name);

/* Follow the run *id* in the open *registry*; NULL if it is dead or its files cannot be trusted. */
struct run *run_open(int registry, const char *id);

/* Stop following it, and remove its clock files from the open folder *clocks*. */
void run_close(struct run *run, int clocks);

/* Publish the model's results in the run's clock file of a device, which is created if missing. */
void run_show(struct run *run, unsigned index, int clocks, const struct lending *lending);

/* Whether its supervisor or any of its processes lives: the kernel knows by their locks. */
int run_lives(const struct run *run);

/* Whether its first clock is a link into *folder*. */
int run_links_to(const struct run *run, int registry, const char *folder);

/* Check for new limits and slots. 1: the limits changed, 0: they did not, -1: the files are no
 * longer complete. */
int run_refresh(struct run *run);

/* Feed the model with what the processes publish about the device at *index* in the quota. */
void run_see(struct run *run, unsigned index, struct lending *lending, uint64_t now);

/* Whether any of its processes has work on that device, *passed_ns* after the last tick. */
int run_has_work(const struct run *run, unsigned index, uint64_t passed_ns, uint64_t now);

/* Whether the process belongs to this run. */
int run_has(const struct run *run, const struct process *process);

/* Forget work that its processes had begun before it was suspended: all of it is done. */
void run_rest(struct run *run);

/* Clear the backlogs of dead processes. */
void run_bury(struct run *run);

#endif
