/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h -- what timing single calls of a running program needs.
 *
 * Each figure warms up, then times every call by itself: p50 is the median of calls, and what
 * happens every few milliseconds (an interrupt, a look for dead processes) is in p99 and max.
 */
#ifndef PYVGPU_BENCH_CALLS_H
#define PYVGPU_BENCH_CALLS_H

#include "library.h"
#include "samples.h"
#include "timer.h"

enum { CROWD = 8, WARM_UP = 2000 };

/* The clock, the driver, and a context on the first device. */
void calls_begin(void);

#endif
