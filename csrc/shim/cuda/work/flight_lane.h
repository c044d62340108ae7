/* SPDX-License-Identifier: Apache-2.0 */
/* flight_lane.h -- what flight.c and flight_poll.c share about a lane. */
#ifndef PYVGPU_SHIM_CUDA_WORK_FLIGHT_LANE_H
#define PYVGPU_SHIM_CUDA_WORK_FLIGHT_LANE_H

#include "shim/cuda/work/flight.h"

#define MILLISECOND INT64_C(1000000)
#define OLD_NS      ((uint64_t) (4 * MILLISECOND))      /* at this age it is closed anyway */
#define VISIT_NS    ((uint64_t) (3 * MILLISECOND / 10)) /* likewise if the device waits for us */

static inline int flight_is_unfinished(const struct flight_lane *lane)
{
    return lane->count || (lane->is_open && flight_spent(lane) > lane->open.spent_ns);
}

/* Its stream was destroyed, and its work goes on. */
static inline int flight_is_orphan(const struct flight_lane *lane)
{
    return lane->name == (uintptr_t) lane;
}

/* While a stream captures, neither it nor others that could have joined the capture may be touched,
 * and the legacy stream only by a launch in it. */
int flight_may_mark(const struct flight_lane *lane);

/* Give back the marks of a piece, or of all pieces that are closed, which end unmeasured. */
void flight_give_back(struct flight_piece *piece);
void flight_give_back_all(struct flight_lane *lane);

/* The time bought for it that is not known to be used up. */
int64_t flight_outstanding(const struct flight_lane *lane);

/* Free the lane; its work in flight will not be measured. */
void flight_drop(struct flight_lane *lane);

/* In a forked child: forget what was seen. */
void flight_poll_after_fork(void);

#endif
