/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.h -- several processes that do the same at the same time. */
#ifndef PYVGPU_BENCH_CROWD_H
#define PYVGPU_BENCH_CROWD_H

#include <stdint.h>

/* What each process does: make ready, then (released with all others) act, and until all have
 * acted go on with something, if there is something. */
struct crowd_role {
    void (*prepare)(unsigned index);
    void (*act)(unsigned index, uint64_t released_ns); /* CLOCK_MONOTONIC of the release */
    void (*go_on)(void);
};

/* Fork *count* processes, release them once all are ready, end them once all have acted. Ends the
 * program if one of them fails. */
void crowd_run(unsigned count, const struct crowd_role *role);

#endif
