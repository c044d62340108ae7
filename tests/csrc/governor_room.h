/* SPDX-License-Identifier: Apache-2.0 */
/* governor_room.h -- a governor with half of a device, and the records that it shares. */
#ifndef PYVGPU_TESTS_GOVERNOR_ROOM_H
#define PYVGPU_TESTS_GOVERNOR_ROOM_H

#include "check.h"
#include "governor.h"

#define MS       INT64_C(1000000)
#define HALF     (CLOCK_WHOLE / 2)
#define BURST    (2 * MS)
#define BEHIND   (50 * MS) /* at half of the device */
#define IN_LIMIT (8 * MS)

static struct usage_compute shared;
static struct usage_work work;
static const struct governor_share half = {.own = HALF, .limit = HALF};

static inline struct governor new_governor(void)
{
    memset(&shared, 0, sizeof(shared));
    memset(&work, 0, sizeof(work));
    return (struct governor) {.shared = &shared, .work = &work};
}

static inline enum governor_answer buy(struct governor *governor, int64_t cost_ns, uint64_t now)
{
    uint64_t until;

    return governor_buy(governor, &half, cost_ns, now, &until);
}

static inline void spend_all(struct governor *governor, uint64_t now)
{
    credit_take(&governor->credit);
    governor_finish(governor, governor_paid(governor), now);
}

#endif
