/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h -- limits of device memory for cgroups, which NVML has since CUDA 13.4.
 *
 * The machine's law says what the driver supports: cgroup_limits is 0 for no limits, 1 for a driver
 * that counts by itself (a process counts for the nearest of its cgroups that has a limit, and for
 * no other), 2 for one that leaves it to the kernel's dmem controller (it counts for each of them).
 * Only cgroups of version 2 have limits. A process's cgroups are those in which it first used the
 * driver; shares on their own (share.h) count for none.
 */
#ifndef PYVGPU_SIMULATOR_CGROUP_H
#define PYVGPU_SIMULATOR_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum { CGROUP_LEVELS = 16, CGROUP_LIMITS = 1024, CGROUP_PATH = 512 };

#define CGROUP_NO_LIMIT UINT64_MAX

/* IDs of the cgroups that a process is in, the innermost first; a 0 ends them. */
struct cgroup_chain {
    uint64_t ids[CGROUP_LEVELS];
};

struct cgroup_limit {
    _Atomic uint64_t id; /* of the cgroup; 0: no limit */
    uint64_t device;
    uint64_t soft;
    _Atomic uint64_t hard;
    char path[CGROUP_PATH]; /* of the cgroup, as the process that set it has it mounted */
};

/* In the machine's state. Changed under state->lock, read without. */
struct cgroup_table {
    _Atomic uint32_t end; /* limits at and above it were never used */
    uint32_t unused;
    struct cgroup_limit limits[CGROUP_LIMITS];
};

struct cgroup_figures {
    uint64_t soft;
    uint64_t hard;
    uint64_t used;
};

struct machine;

/* Fill in this process's cgroups. */
void cgroup_find(struct cgroup_chain *chain);

/* Set or lift (soft 0, hard CGROUP_NO_LIMIT) the limits of the cgroup at path: 0, or
 * an errno: what opening the folder gives, EINVAL if it is no cgroup of version 2, ENOSPC. */
int cgroup_set(struct machine *machine, uint32_t device, const char *path, uint64_t soft,
               uint64_t hard);

/* Read the cgroup's limits and usage; results as of cgroup_set. */
int cgroup_get(struct machine *machine, uint32_t device, const char *path,
               struct cgroup_figures *figures);

/* The lowest limit for a process in these cgroups, and its usage. False: no limit. */
bool cgroup_read(const struct machine *machine, uint32_t device, const struct cgroup_chain *chain,
                 struct cgroup_figures *figures);

/* The device's account is locked. Do the limits allow the slot's process so many more bytes? */
bool cgroup_allows(const struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes);

#endif
