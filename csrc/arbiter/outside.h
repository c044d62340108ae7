/* SPDX-License-Identifier: Apache-2.0 */
/* outside.h -- what NVML says of a device: how busy it is, and which processes use it.
 *
 * Processes that belong to no run publish nothing, yet the device gives them turns like all others.
 * A run beside one of them would take those turns for work of its own. NVML's figures are averages
 * over tenths of a second, and its share of one process beside others is no measure of the time
 * that it had (seen on an H200: 39 and 8 percent of processes that had 60 and 30). So two things
 * are taken from it: that a process has used the device of late, and how busy the device is as a
 * whole.
 *
 * NVML may take long, or hang with a device, so it is asked by a thread of its own.
 */
#ifndef PYVGPU_ARBITER_OUTSIDE_H
#define PYVGPU_ARBITER_OUTSIDE_H

#include <stdint.h>

enum { OUTSIDE_PIDS = 64 }; /* that are told of; of more the first */

struct outside {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: nothing is known */
    uint32_t load;  /* percent of the time in which the device was at work */
    uint32_t count;
    uint32_t pids[OUTSIDE_PIDS]; /* of processes that used it in the last second */
};

/* Begin to ask the NVML that is the file or library of this name. Without it nothing is known. */
void outside_start(const char *libnvidia_ml);

/* What was seen last of a device, if that was within a second; from now on it is asked for a
 * second. 0: nothing. */
int outside_look(const uint8_t uuid[16], uint64_t now, struct outside *seen);

#endif
