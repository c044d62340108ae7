/* SPDX-License-Identifier: Apache-2.0 */
/* outside.h -- NVML utilization of a device, and the processes that use it.
 *
 * Processes that belong to no run publish nothing, yet the device gives them time slices like all
 * others. A run beside one of them would take those slices for work of its own. NVML's figures are
 * averages over tenths of a second, and its utilization of one process beside others does not
 * measure the time that it had (seen on an H200: 39 and 8 percent for processes that had 60 and
 * 30). So only two facts are used: that a process has used the device recently, and how busy the
 * device is as a whole.
 *
 * NVML may take long, or hang with a device, so a separate thread calls it.
 */
#ifndef PYVGPU_ARBITER_OUTSIDE_H
#define PYVGPU_ARBITER_OUTSIDE_H

#include <stdint.h>

enum { OUTSIDE_PIDS = 64 }; /* the most that are reported: the first ones */

struct outside {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: nothing is known */
    uint32_t load;  /* device utilization, percent */
    uint32_t count;
    uint32_t pids[OUTSIDE_PIDS]; /* processes that used it in the last second */
};

/* Start the thread, with NVML from this file or library name. If that fails nothing is known. */
void outside_start(const char *libnvidia_ml);

/* Copy the last sample of a device; 0 if it has none within the last second. Sampling of the device
 * continues for a second after each call. */
int outside_read(const uint8_t uuid[16], uint64_t now, struct outside *seen);

#endif
