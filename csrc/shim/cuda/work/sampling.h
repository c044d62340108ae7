/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.h -- learns the costs of shapes and of marks from pieces that were measured.
 *
 * A sample waits until the arbiter's clock covers its time: only then is known how much of the
 * device others used meanwhile. All functions are for the thread that holds the marks. */
#ifndef PYVGPU_SHIM_CUDA_WORK_SAMPLING_H
#define PYVGPU_SHIM_CUDA_WORK_SAMPLING_H

#include "shim/cuda/work/flight.h"

/* The device's time for a mark; 0 until it was measured often enough. */
int64_t sampling_mark_ns(void);

/* A piece that measures a launch or the marks themselves ran from *from* to *until*; *untimed*: the
 * driver does not report when. */
void sampling_note(const struct flight_lane *lane, const struct flight_piece *piece, uint64_t from,
                   uint64_t until, int untimed);

/* Learn from the samples of *device* whose time the clock covers. */
void sampling_learn(const struct limited_device *device, const struct clock_view *clock,
                    uint64_t now);

void sampling_after_fork(void);

#endif
