/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.h -- several processes, or threads of this one, that run the same code concurrently. */
#ifndef PYVGPU_BENCH_CROWD_H
#define PYVGPU_BENCH_CROWD_H

#include <stdint.h>

/* Callbacks of each member: prepare once; act in each round, which releases all members together;
 * then call go_on, unless NULL, until all have acted. */
struct crowd_role {
    void (*prepare)(unsigned index);
    void (*act)(unsigned index, uint64_t released_ns); /* CLOCK_MONOTONIC of the release */
    void (*go_on)(void);
};

enum crowd_kind { CROWD_PROCESSES, CROWD_THREADS };

struct crowd;

/* Start *count* members and wait until all are ready. Any failure, now or later, ends the program.
 */
struct crowd *crowd_start(enum crowd_kind kind, unsigned count, const struct crowd_role *role);

/* Run a round: release the members, and wait until all have acted and are ready again. */
void crowd_act(struct crowd *crowd);

void crowd_end(struct crowd *crowd);

#endif
