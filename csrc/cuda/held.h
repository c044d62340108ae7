/* SPDX-License-Identifier: Apache-2.0 */
/* held.h -- which devices are held to a share, and what their clocks say.
 *
 * A container that has all of a device's time is not held. Yet beside others it says what it has
 * begun, from when its clock knows of another container until it knows of none.
 */
#ifndef PYVGPU_CUDA_HELD_H
#define PYVGPU_CUDA_HELD_H

#include "cuda/pace.h"

extern struct pace_device held_devices[REGION_DEVICES];
extern unsigned held_count;

int held_is(const struct pace_device *device);

/* Read the clock of a device, if that was not done just now. Only one thread may at a time: who has
 * the marks, or who watches while no device is held. */
void held_read_clock(struct pace_device *device, uint64_t now);

/* In a forked child. */
void held_forget(void);

#endif
