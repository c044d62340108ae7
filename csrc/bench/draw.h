/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h -- pseudo-random numbers, the same in each run, so that access patterns are unpredictable
 * for caches and devices. */
#ifndef PYVGPU_BENCH_DRAW_H
#define PYVGPU_BENCH_DRAW_H

#include <stdint.h>

/* The next number: any of 64 bits but 0. One sequence per process, for one thread at a time. */
static inline uint64_t draw(void)
{
    static uint64_t state = UINT64_C(0x2545f4914f6cdd1d); /* of xorshift */

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

#endif
