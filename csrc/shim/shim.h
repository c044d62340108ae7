/* SPDX-License-Identifier: Apache-2.0 */
/* shim.h -- the shim's state in this process, and its attachment to the region. */
#ifndef PYVGPU_SHIM_SHIM_H
#define PYVGPU_SHIM_SHIM_H

#include "core/compiler.h"
#include "shim/hooks.h"
#include "core/ledger.h"

#define SHIM_ORDINALS 64 /* highest number of CUDA devices; the quota has at most 16 */

struct shim {
    int open; /* cuInit succeeded in this process (not its parent), so it has a slot */
    struct ledger ledger;
    struct region region;
    struct quota_limits limits;      /* as first read: devices never change in place */
    uint32_t vcore[REGION_DEVICES];  /* current values, like ledger.limit */
    int8_t device_of[SHIM_ORDINALS]; /* CUDA ordinal -> index in the quota */
};

extern struct shim shim;

/* Whether the driver's entry points are known; finds them at the first call. */
int shim_loaded(void);

/* Find the region and check that it is for this driver; repeated calls are cheap. 0; or -1: a line
 * was printed, and every call must be refused. */
int shim_attach(void);

/* Log why CUDA and NVML are refused, once. */
void shim_complain(const char *why);

void shim_after_fork(void);

/* Take over changed limits. */
void shim_refresh(void);

static inline void shim_watch_limits(void)
{
    if (unlikely(region_generation(shim.region.quota) != shim.ledger.generation))
        shim_refresh();
}

/* The index in the quota of a CUDA ordinal, -1 if it has none. */
static inline int shim_device(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < SHIM_ORDINALS ? shim.device_of[ordinal] : -1;
}

/* The index of the only device that CUDA shows; -1 if it shows several. */
static inline int shim_only_device(void)
{
    return shim.device_of[1] < 0 ? shim.device_of[0] : -1;
}

/* The inverse of shim_device(): -1 if CUDA does not show the device. */
static inline CUdevice shim_ordinal(int device)
{
    CUdevice ordinal = SHIM_ORDINALS - 1;

    while (ordinal >= 0 && (device < 0 || shim.device_of[ordinal] != device))
        ordinal--;
    return ordinal;
}

#endif
