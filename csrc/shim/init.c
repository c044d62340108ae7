/* SPDX-License-Identifier: Apache-2.0 */
/* init.c -- cuInit: claims a slot, and lets the driver initialise with the quota's devices. */
#include "shim/init.h"
#include "core/environment.h"
#include "core/mutex.h"
#include "core/slots.h"
#include "core/visible.h"
#include "shim/cuda/mps.h"
#include "shim/driver.h"
#include "shim/lifecycle.h"
#include "shim/shim.h"
#include "shim/suspension.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"

/* One thread at a time is in cuInit. Recursive, because the driver's cuInit loads libraries that a
 * profiler has named, and these may call us. */
static pthread_mutex_t init_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static enum { IDLE, PREPARING, IN_DRIVER } initialising; /* progress of the thread in cuInit */

void init_after_fork(void)
{
    init_lock = (pthread_mutex_t) PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    initialising = IDLE;
}

/* Let the driver initialise with only the quota's devices visible. */
static CUresult init_driver(unsigned int flags)
{
    char devices[VISIBLE_TEXT];
    CUresult result;

    visible_resolve(getenv(VISIBLE_DEVICES), &shim.limits, devices);
    if (environment_show(VISIBLE_DEVICES, devices) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    slots_keep_with_children();
    initialising = IN_DRIVER;
    result = driver.cuInit(flags);
    initialising = PREPARING;
    environment_restore();
    return result;
}

static int device_with(const CUuuid *uuid)
{
    for (unsigned i = 0; i < shim.limits.device_count; i++)
        if (memcmp(shim.limits.devices[i].uuid, uuid, sizeof(*uuid)) == 0)
            return (int) i;
    return -1;
}

/* The first version names the GPU of a MIG device; drivers before 11.4 have only that. */
static CUresult uuid_of(CUuuid *uuid, CUdevice ordinal)
{
    CUresult result = driver.cuDeviceGetUuid_v2(uuid, ordinal);

    return result == CUDA_ERROR_NOT_SUPPORTED ? driver.cuDeviceGetUuid(uuid, ordinal) : result;
}

/* Map each CUDA ordinal to its quota; a device without one must not be visible. */
static int map_ordinals(void)
{
    int count = 0;

    memset(shim.device_of, -1, sizeof(shim.device_of));
    if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS || count > SHIM_ORDINALS)
        return -1;
    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        CUdevice ordinal;

        if (driver.cuDeviceGet(&ordinal, i) != CUDA_SUCCESS || ordinal != i ||
            uuid_of(&uuid, ordinal) != CUDA_SUCCESS)
            return -1;
        shim.device_of[i] = (int8_t) device_with(&uuid);
        if (shim.device_of[i] < 0)
            return -1;
    }
    return 0;
}

/* A process must not begin to use the devices while its run is suspended. Its slot is visible to
 * the supervisor before it reads that, and it gives the slot back while it waits. */
static int claim_slot(struct region_reason *reason)
{
    while (shim.region.slot < 0) {
        if (slots_claim(&shim.region, shim.limits.flags, reason))
            return -1;
        if (!suspension_is_on())
            break;
        slots_release(&shim.region);
        suspension_wait_to_begin();
    }
    return 0;
}

static CUresult init(unsigned int flags)
{
    struct region_reason reason;
    CUresult result;

    if (shim_attach() != 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if (shim.open)
        return driver.cuInit(flags);
    /* Claim the slot first: an initialised driver must never be without one. */
    if (claim_slot(&reason)) {
        shim_complain(reason.text);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!mps_is_confined(&shim.limits, &reason)) {
        shim_complain(reason.text);
        slots_release(&shim.region);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    result = init_driver(flags);
    if (result != CUDA_SUCCESS) {
        slots_release(&shim.region);
        return result;
    }
    if (map_ordinals() != 0) {
        shim_complain("the driver shows a device that the quota does not name");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!mps_is_used(&shim.limits, shim.device_of, SHIM_ORDINALS, &reason)) {
        shim_complain(reason.text);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    lifecycle_open();
    __atomic_store_n(&shim.open, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
    CUresult result;

    mutex_lock(&init_lock, LOCK_INIT);
    if (unlikely(initialising == IN_DRIVER)) {
        result =
            driver.cuInit(flags); /* called from within the driver's cuInit: its own business */
    } else if (unlikely(initialising == PREPARING)) {
        result = CUDA_ERROR_NOT_INITIALIZED; /* CUDA_VISIBLE_DEVICES is not set yet */
    } else {
        initialising = PREPARING;
        result = init(flags);
        initialising = IDLE;
    }
    mutex_unlock(&init_lock, LOCK_INIT);
    return result;
}
