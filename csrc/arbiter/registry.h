/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h -- the machine's reservation directories ("registries") and the live runs in them.
 *
 * A registry has one folder per run, with the run's quota and usage files
 * (pyvgpu/machine/reservations.py). */
#ifndef PYVGPU_ARBITER_REGISTRY_H
#define PYVGPU_ARBITER_REGISTRY_H

#include "arbiter/run.h"

#include <time.h>

#define REGISTRIES    2   /* root's, which counts only if root owns it, and the one for all users */
#define REGISTRY_RUNS 512 /* runs followed; further ones have no clock */

struct open_registry {       /* an open registry, kept from one registry_drop_dead() to the next */
    int fd;                  /* -1: it does not exist */
    int is_open;             /* opening it was tried */
    int is_read;             /* every run in it at... */
    struct timespec changed; /* ...this modification time is followed */
};

struct registries {
    const char *paths[REGISTRIES];
    struct open_registry opened[REGISTRIES];
    int clocks; /* the folder of the runs' clock files */
    struct run *runs[REGISTRY_RUNS];
    unsigned count;
};

/* Find runs that are new, gone or have new limits; 1 if there are any. */
int registry_scan(struct registries *registries);

/* Drop dead runs, and clear the work of dead processes; 1 if a run was dropped. */
int registry_drop_dead(struct registries *registries);

/* Whether the registry with this *index* has a live run. */
int registry_has_live_run(const struct registries *registries, unsigned index);

/* Whether the process belongs to a run. */
int registry_has_process(const struct registries *registries, const struct process *process);

/* Whether any run reads its clocks from *folder*. */
int registry_reads_clocks_from(const struct registries *registries, const char *folder);

#endif
