/* SPDX-License-Identifier: Apache-2.0 */
/* shim.c -- initialisation at the first call: finds the driver, checks the region, claims a slot.
 *
 * It fails closed. Without a valid quota for this driver release, cuInit and nvmlInit return an
 * error and print one line with the reason on standard error; no other hook lets a call pass before
 * cuInit has succeeded. There is no constructor: a program that never calls CUDA never runs this.
 */
#include "shim/shim.h"
#include "shim/cuda/mps.h"
#include "shim/dispatch.h"
#include "shim/driver.h"
#include "shim/lifecycle.h"
#include "shim/suspension.h"
#include "core/environment.h"
#include "core/log.h"
#include "core/slots.h"
#include "core/visible.h"
#include "core/mutex.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"

struct shim shim;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* One thread at a time attaches or is in cuInit. Recursive, because the driver's cuInit loads
 * libraries that a profiler has named, and these may call us. */
static pthread_mutex_t init_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static enum { IDLE, PREPARING, IN_DRIVER } initialising; /* progress of the thread in cuInit */

static const char *missing_library;
static int opened; /* the files are mapped, for the life of the process */
static int attached;
static int refreshing; /* a thread is taking over changed limits */
static int complained; /* the line was printed: further calls only return the error code */

static void complain(const char *why)
{
    if (!__atomic_exchange_n(&complained, 1, __ATOMIC_RELAXED))
        log_error("CUDA and NVML are refused: %s", why);
}

/* In a forked child the driver answers every call with "not initialised"; so do we. */
void shim_after_fork(void)
{
    init_lock = (pthread_mutex_t) PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    initialising = IDLE;
    shim.open = 0;
    refreshing = 0;
    slots_after_fork(&shim.region);
}

static void load(void)
{
    log_configure();
    shim.region.slot = -1;
    missing_library = driver_load();
    if (missing_library)
        return;
    dispatch_build();
    pthread_atfork(slots_before_fork, slots_after_fork_in_parent, lifecycle_after_fork);
}

int shim_loaded(void)
{
    static char why[256];

    pthread_once(&load_once, load);
    if (likely(!missing_library))
        return 1;
    snprintf(why, sizeof(why), "the driver's own %s is not loaded; run under `pyvgpu run`",
             missing_library);
    complain(why);
    return 0;
}

static int limits_fit_driver(struct region_reason *reason)
{
    char release[sizeof(shim.limits.driver_release)];

    driver_release(release, sizeof(release));
    if (strcmp(release, shim.limits.driver_release) == 0)
        return 1;
    snprintf(reason->text, sizeof(reason->text),
             "the quota is for driver release '%s', the driver here is '%s'",
             shim.limits.driver_release, release);
    return 0;
}

static void take_limits(const struct quota_limits *limits)
{
    for (unsigned i = 0; i < limits->device_count; i++) {
        __atomic_store_n(&shim.ledger.limit[i], limits->devices[i].vmemory, __ATOMIC_RELAXED);
        __atomic_store_n(&shim.vcore[i], limits->devices[i].vcore, __ATOMIC_RELAXED);
    }
    lifecycle_take_limits(limits);
    __atomic_store_n(&shim.ledger.generation, limits->generation, __ATOMIC_RELEASE);
}

static int attach(void)
{
    struct region_reason reason = {"the quota holds no valid limits"};
    Dl_info self;

    if (attached)
        return 0;
    if (!shim_loaded())
        return -1;
    if (!dladdr((void *) attach, &self) || !self.dli_fname) {
        complain("the shim cannot determine the file that it was loaded from");
        return -1;
    }
    if (!opened)
        opened = region_open(&shim.region, self.dli_fname, &reason) == REGION_OK;
    if (!opened || !region_limits(shim.region.quota, &shim.limits) || !limits_fit_driver(&reason)) {
        complain(reason.text);
        return -1;
    }
    shim.ledger.region = &shim.region;
    take_limits(&shim.limits);
    attached = 1;
    return 0;
}

int shim_attach(void)
{
    int result;

    mutex_lock(&init_lock, LOCK_INIT);
    result = attach();
    mutex_unlock(&init_lock, LOCK_INIT);
    return result;
}

void shim_refresh(void)
{
    struct quota_limits limits;

    /* One thread at a time, so that no older limits overwrite newer ones. Other threads go on with
     * the limits that they have; no charge is admitted by outdated ones (ledger.c). */
    if (__atomic_exchange_n(&refreshing, 1, __ATOMIC_ACQUIRE))
        return;
    /* Between two writes neither copy may be complete; then the current limits stay. Devices never
     * change in place. */
    if (region_limits(shim.region.quota, &limits) &&
        limits.device_count == shim.limits.device_count)
        take_limits(&limits);
    __atomic_store_n(&refreshing, 0, __ATOMIC_RELEASE);
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

    if (attach() != 0)
        return CUDA_ERROR_NOT_PERMITTED;
    if (shim.open)
        return driver.cuInit(flags);
    /* Claim the slot first: an initialised driver must never be without one. */
    if (claim_slot(&reason)) {
        complain(reason.text);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!mps_is_confined(&shim.limits, &reason)) {
        complain(reason.text);
        slots_release(&shim.region);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    result = init_driver(flags);
    if (result != CUDA_SUCCESS) {
        slots_release(&shim.region);
        return result;
    }
    if (map_ordinals() != 0) {
        complain("the driver shows a device that the quota does not name");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (!mps_is_used(&shim.limits, shim.device_of, SHIM_ORDINALS, &reason)) {
        complain(reason.text);
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
