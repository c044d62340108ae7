/* SPDX-License-Identifier: Apache-2.0 */
/* limited_devices.h -- which devices are throttled to a share, and the state of their clocks.
 *
 * A container that has all of a device's time is not throttled. Yet beside others it publishes the
 * work that it has begun: as long as its clock knows of another container.
 */
#ifndef PYVGPU_SHIM_CUDA_WORK_LIMITED_DEVICES_H
#define PYVGPU_SHIM_CUDA_WORK_LIMITED_DEVICES_H

#include "core/clock.h"
#include "core/costs.h"
#include "core/governor.h"
#include "shim/shim.h"

enum throttling_state {
    THROTTLING_CLOSED, /* before cuInit, and in a forked child */
    THROTTLING_NONE,   /* no device is limited or shared with others */
    THROTTLING_ON,
};

struct limited_device {
    struct governor_share share;
    struct clock_view clock;
    uint64_t clock_read_ns; /* last attempt to read it */
    uint64_t unsure_ns;     /* when it last had work whose cost is a mere guess; 0: never */
    uint64_t unseen_ns;     /* when it last had work whose end cannot be observed; 0: never */
    int beside;             /* it is not limited, but shared with others */
    int lanes_begun;        /* lanes with something in flight, */
    uint64_t ended_ns;      /* and when work of any lane was last seen to end */
    uint32_t above;         /* as in clock_above(), if this container gives way to others; else 0 */
    struct governor governor;
};

struct throttling {
    enum throttling_state state;
    struct limited_device *only; /* the device, if the quota has only one and it is limited */
    int gives_way;               /* this container is of low priority */
};

extern struct throttling throttling;
extern struct costs launch_costs; /* of work on any device, by its shape */
extern struct limited_device limited_devices[REGION_DEVICES];
extern unsigned limited_device_count;

int limited_devices_has(const struct limited_device *device);

/* Read the clock of a device, unless that was done just now. Only for one thread at a time: the one
 * that holds the marks, or the one in limited_devices_watch() while no device is throttled. */
void limited_devices_read_clock(struct limited_device *device, uint64_t now);

/* Whether the process was suspended since the last call. */
int limited_devices_was_suspended(void);

/* Apply new limits; start once cuInit has succeeded and this process has a slot. */
void limited_devices_take_limits(const struct quota_limits *limits);
void limited_devices_open(void);

/* Called now and then: whether an unlimited device is shared with others by now. */
int limited_devices_watch(void);

extern __thread int32_t limited_devices_calls __attribute__((tls_model("initial-exec")));

void limited_devices_after_fork(void);

#endif
