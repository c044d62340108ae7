/* SPDX-License-Identifier: Apache-2.0 */
/* arbiter.h -- the arbiter's main loop: one clock file per run and device that it shares.
 *
 * One arbiter per machine. Its folder lies in a registry (registry.h) and belongs to its user
 * alone. It holds the file `arbiter`, whose lock shows that the process is alive and whose beat
 * that it is not frozen, and the runs' clock files, each named by the run ID and the device's index
 * in the run's quota.
 */
#ifndef PYVGPU_ARBITER_ARBITER_H
#define PYVGPU_ARBITER_ARBITER_H

#include "arbiter/registry.h"

#include <signal.h>
#include <sys/types.h>

#define ARBITER_DEVICES 256 /* devices followed; further ones have no clock */

/* All processes that belong to no run, modelled together as one container without a share. Its one
 * process works as much as NVML reports for the device beyond the runs' work. */
struct outsiders {
    struct lending_container tenant;
    struct lending_process lane;
    uint64_t seen_ns;  /* time of the last NVML sample evaluated */
    uint64_t until_ns; /* they are counted until then */
    double part;       /* fraction of the device's time; 0: there are none */
};

struct device {
    uint8_t uuid[16];
    struct lending lending;
    struct others others;
    struct lending_container *tenants[REGISTRY_RUNS + 1];
    unsigned count;
    double used;    /* fraction of its time that the runs used recently */
    int low;        /* runs of low priority share it, */
    uint32_t above; /* clock_file.above of runs of low priority; 0: no others share it */
    int watched;    /* both share it, and those of low priority have work */
    struct outsiders outsiders;
};

struct arbiter {
    struct registries registries;
    const char *path; /* the arbiter's folder */
    int folder;
    int lock;
    struct lending beat;
    struct clock_file *page; /* the locked file */
    struct device *devices[ARBITER_DEVICES];
    unsigned count;
    uint64_t scanned_ns; /* last scan for new or changed runs, */
    uint64_t buried_ns;  /* and for dead ones */
};

/* Returned by arbiter_take() if another arbiter has the folder. */
extern const char arbiter_other[];

/* Take the folder at *path*, and create it if it is missing. Returns NULL, or the reason why that
 * failed. */
const char *arbiter_take(struct arbiter *arbiter, const char *path);

/* Keep the clocks until *ended*, or until no run needs them. They count as needed while our parent
 * is *keeper*, the process that keeps the runs of the first registry. 0: there is no keeper.
 */
void arbiter_keep(struct arbiter *arbiter, pid_t keeper, const volatile sig_atomic_t *ended);

/* Remove every file that was created, and the folder. */
void arbiter_leave(struct arbiter *arbiter);

#endif
