/* SPDX-License-Identifier: Apache-2.0 */
/* limited_devices.h -- which devices are throttled to a share, and the state of their clocks.
 *
 * A container that has all of a device's time is not throttled. Yet beside others it publishes the
 * work that it has begun: as long as its clock knows of another container.
 */
#ifndef PYVGPU_SHIM_CUDA_WORK_LIMITED_DEVICES_H
#define PYVGPU_SHIM_CUDA_WORK_LIMITED_DEVICES_H

#include "shim/cuda/work/pace.h"

extern struct pace_device limited_devices[REGION_DEVICES];
extern unsigned limited_device_count;

int limited_devices_has(const struct pace_device *device);

/* Read the clock of a device, unless that was done just now. Only for one thread at a time: the one
 * that holds the marks, or the one in pace_watch() while no device is throttled. */
void limited_devices_read_clock(struct pace_device *device, uint64_t now);

/* Whether the process was suspended since the last call. */
int limited_devices_was_suspended(void);

void limited_devices_after_fork(void);

#endif
