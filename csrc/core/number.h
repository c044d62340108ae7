/* SPDX-License-Identifier: Apache-2.0 */
/* number.h -- minimum, maximum and clamp of integers. */
#ifndef PYVGPU_CORE_NUMBER_H
#define PYVGPU_CORE_NUMBER_H

#include <stdint.h>

static inline int64_t smaller(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static inline int64_t larger(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static inline uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t latest(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static inline int64_t within(int64_t value, int64_t low, int64_t high)
{
    return larger(low, smaller(value, high));
}

#endif
