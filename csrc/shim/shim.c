/* SPDX-License-Identifier: Apache-2.0 */
/* shim.c -- at the first call, finds the driver and checks the region. cuInit does the rest
 * (init.c).
 *
 * It fails closed. Without a valid quota for this driver release, cuInit and nvmlInit return an
 * error and print one line with the reason on standard error; no other hook lets a call pass before
 * cuInit has succeeded. There is no constructor: a program that never calls CUDA never runs this.
 */
#include "shim/shim.h"
#include "shim/dispatch.h"
#include "shim/driver.h"
#include "shim/lifecycle.h"
#include "core/log.h"
#include "core/slots.h"
#include "core/mutex.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct shim shim;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* One thread at a time attaches. */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *missing_library;
static int opened; /* the files are mapped, for the life of the process */
static int attached;
static int refreshing; /* a thread is taking over changed limits */
static int complained; /* the line was printed: further calls only return the error code */

void shim_complain(const char *why)
{
    if (!__atomic_exchange_n(&complained, 1, __ATOMIC_RELAXED))
        log_error("CUDA and NVML are refused: %s", why);
}

/* In a forked child the driver answers every call with "not initialised"; so do we. */
void shim_after_fork(void)
{
    pthread_mutex_init(&attach_lock, NULL);
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
    shim_complain(why);
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
        shim_complain("the shim cannot determine the file that it was loaded from");
        return -1;
    }
    if (!opened)
        opened = region_open(&shim.region, self.dli_fname, &reason) == REGION_OK;
    if (!opened || !region_limits(shim.region.quota, &shim.limits) || !limits_fit_driver(&reason)) {
        shim_complain(reason.text);
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

    mutex_lock(&attach_lock, LOCK_ATTACH);
    result = attach();
    mutex_unlock(&attach_lock, LOCK_ATTACH);
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
