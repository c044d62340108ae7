/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h -- numbers by chance, the same in each run: what goes next must not be what a cache, or a
 * device, expects. */
#ifndef PYVGPU_BENCH_DRAW_H
#define PYVGPU_BENCH_DRAW_H

#include <stdint.h>

/* The next one of all of 64 bits but 0; of a process, and by one thread at a time. */
static inline uint64_t draw(void)
{
    static uint64_t state = UINT64_C(0x2545f4914f6cdd1d); /* of xorshift */

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

#endif
