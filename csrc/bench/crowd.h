/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.h -- several processes, or threads of this one, that do the same at the same time. */
#ifndef PYVGPU_BENCH_CROWD_H
#define PYVGPU_BENCH_CROWD_H

#include <stdint.h>

/* What each does: make ready once; then, as often as all are released together, act, and until all
 * have acted go on with something, if there is something. */
struct crowd_role {
    void (*prepare)(unsigned index);
    void (*act)(unsigned index, uint64_t released_ns); /* CLOCK_MONOTONIC of the release */
    void (*go_on)(void);
};

enum crowd_kind { CROWD_PROCESSES, CROWD_THREADS };

struct crowd;

/* Have *count* of them, all ready. Whatever fails, now or later, ends the program. */
struct crowd *crowd_start(enum crowd_kind kind, unsigned count, const struct crowd_role *role);

/* Release them, and wait until all have acted and none goes on. */
void crowd_act(struct crowd *crowd);

void crowd_end(struct crowd *crowd);

#endif
