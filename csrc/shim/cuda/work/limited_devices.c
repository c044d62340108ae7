/* SPDX-License-Identifier: Apache-2.0 */
/* limited_devices.c -- applies limits and reads the arbiter's clocks; see limited_devices.h. */
#include "shim/cuda/work/limited_devices.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MILLISECOND UINT64_C(1000000)

#define CLOCK_EVERY_NS  (2 * MILLISECOND)
#define ABOVE_EVERY_NS  (MILLISECOND / 5)  /* where this container gives way to others */
#define NO_CLOCK_FOR_NS (50 * MILLISECOND) /* until the next attempt if there is no clock */

/* Shortest interval of checks for neighbours while unthrottled: with a clock, and without one. */
#define WATCH_NS  (20 * MILLISECOND)
#define SELDOM_NS (500 * MILLISECOND)

enum { WATCH_CALLS = 16 }; /* a thread's calls between two readings of the system clock */

struct throttling throttling;
struct costs launch_costs;
struct limited_device limited_devices[REGION_DEVICES];
unsigned limited_device_count;
__thread int32_t limited_devices_calls = 1;

static uint64_t watched_ns;
static int was_suspended;

static uint32_t part_of_whole(uint32_t percent)
{
    return percent * CLOCK_WHOLE / 100;
}

int limited_devices_has(const struct limited_device *device)
{
    return __atomic_load_n(&device->share.own, __ATOMIC_RELAXED) < CLOCK_WHOLE ||
           __atomic_load_n(&device->beside, __ATOMIC_RELAXED);
}

static void set_state(void)
{
    struct limited_device *only =
        limited_device_count == 1 && limited_devices_has(&limited_devices[0]) ? &limited_devices[0]
                                                                              : NULL;
    enum throttling_state state = THROTTLING_NONE;

    for (unsigned i = 0; i < limited_device_count; i++)
        if (limited_devices_has(&limited_devices[i]))
            state = THROTTLING_ON;
    __atomic_store_n(&throttling.only, only, __ATOMIC_RELEASE);
    __atomic_store_n(&throttling.state, state, __ATOMIC_RELEASE);
}

/* The process was suspended: that time gives the container nothing. */
static void skip_suspension(const struct quota_limits *limits)
{
    static uint32_t known = UINT32_MAX;
    uint32_t count = limits->flags >> QUOTA_SUSPENSIONS_SHIFT & QUOTA_SUSPENSIONS_MASK;
    uint64_t now = clock_now_ns(CLOCK_MONOTONIC);

    if (known != UINT32_MAX && known != count) {
        for (unsigned i = 0; i < limits->device_count; i++)
            if (limited_devices[i].governor.shared)
                __atomic_store_n(&limited_devices[i].governor.shared->refilled_ns, now,
                                 __ATOMIC_RELEASE);
        __atomic_store_n(&was_suspended, 1, __ATOMIC_RELEASE);
    }
    known = count;
}

int limited_devices_was_suspended(void)
{
    return __atomic_load_n(&was_suspended, __ATOMIC_RELAXED) &&
           __atomic_exchange_n(&was_suspended, 0, __ATOMIC_ACQUIRE);
}

void limited_devices_take_limits(const struct quota_limits *limits)
{
    skip_suspension(limits);
    for (unsigned i = 0; i < limits->device_count; i++) {
        const struct quota_device *device = &limits->devices[i];
        uint32_t own = device->policy == POLICY_MPS ? 100 : device->vcore;
        uint32_t most = device->policy == POLICY_ELASTIC ? device->vcore_limit : own;

        __atomic_store_n(&limited_devices[i].share.own, part_of_whole(own), __ATOMIC_RELAXED);
        __atomic_store_n(&limited_devices[i].share.limit, part_of_whole(most), __ATOMIC_RELAXED);
        limited_devices[i].governor.unlimited = own >= 100;
    }
    throttling.gives_way = (limits->flags & QUOTA_LOW) != 0;
    limited_device_count = limits->device_count;
    if (throttling.state != THROTTLING_CLOSED)
        set_state();
}

static uint64_t *idle_of(unsigned index)
{
    uint64_t *idle;

    if (!shim.region.idle || shim.region.slot >= IDLE_SLOTS)
        return NULL;
    idle = shim.region.idle[index][shim.region.slot];
    __atomic_store_n(&idle[0], 0, __ATOMIC_RELAXED); /* clear words of the slot's last process */
    __atomic_store_n(&idle[1], 0, __ATOMIC_RELAXED);
    return idle;
}

static uint64_t *progress_of(unsigned index)
{
    if (!shim.region.progress || shim.region.slot >= IDLE_SLOTS)
        return NULL;
    return shim.region.progress[index][shim.region.slot]; /* a new curve begins (progress.h) */
}

void limited_devices_open(void)
{
    struct usage_file *usage = shim.region.usage;

    for (unsigned i = 0; i < limited_device_count; i++) {
        limited_devices[i].governor.shared = &usage->compute[i];
        limited_devices[i].governor.work = &usage->work[i][shim.region.slot];
        limited_devices[i].clock.slot = (uint32_t) shim.region.slot;
        limited_devices[i].governor.idle.words = idle_of(i);
        limited_devices[i].governor.progress.words = progress_of(i);
    }
    set_state();
}

void limited_devices_after_fork(void)
{
    throttling.state = THROTTLING_CLOSED;
    throttling.only = NULL;
    for (unsigned i = 0; i < limited_device_count;
         i++) /* not the bins: each has the number of its time */
        memset(&limited_devices[i], 0, offsetof(struct limited_device, governor.busy.bins));
}

static uint64_t clock_interval(const struct limited_device *device)
{
    if (!device->clock.valid)
        return NO_CLOCK_FOR_NS;
    return throttling.gives_way && device->clock.page.above ? ABOVE_EVERY_NS : CLOCK_EVERY_NS;
}

/* A container with all of a device is tracked only while it has neighbours, for their sake. */
static void note_neighbours(struct limited_device *device)
{
    int beside =
        device->governor.unlimited && device->clock.valid && device->clock.page.tenants > 1;

    if (beside == device->beside)
        return;
    __atomic_store_n(&device->beside, beside, __ATOMIC_RELAXED);
    set_state();
}

void limited_devices_read_clock(struct limited_device *device, uint64_t now)
{
    uint32_t outside = device->clock.page.outside;
    uint64_t every = clock_interval(device);
    struct clock_file page;
    char path[sizeof(shim.region.clock_path) + 8];

    if (now - device->clock_read_ns < every)
        return;
    device->clock_read_ns = now;
    snprintf(path, sizeof(path), "%s%u", shim.region.clock_path,
             (unsigned) (device - limited_devices));
    if (clock_read(path, &page) == 0)
        clock_evaluate(&device->clock, &page, now);
    else
        device->clock.valid = 0;
    if (device->clock.valid && device->clock.page.outside && !outside)
        costs_doubt(&launch_costs);
    note_neighbours(device);
    device->share.lent = clock_lent(&device->clock, now);
    __atomic_store_n(&device->above, throttling.gives_way ? clock_above(&device->clock, now) : 0,
                     __ATOMIC_RELAXED);
    device->share.beside = device->clock.met && device->clock.page.tenants > 1;
    device->share.spared = clock_spared(&device->clock, now);
}

int limited_devices_watch(void)
{
    uint64_t now = coarse_now_ns();
    uint64_t before = __atomic_load_n(&watched_ns, __ATOMIC_RELAXED);
    uint64_t every = limited_devices[0].clock.valid ? WATCH_NS : SELDOM_NS;

    limited_devices_calls = WATCH_CALLS;
    if (now - before < every || !__atomic_compare_exchange_n(&watched_ns, &before, now, 0,
                                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return 0;
    for (unsigned i = 0; i < limited_device_count; i++)
        limited_devices_read_clock(&limited_devices[i], clock_now_ns(CLOCK_MONOTONIC));
    return throttling.state != THROTTLING_NONE;
}
