/* SPDX-License-Identifier: Apache-2.0 */
/* compiler.h -- small helpers on top of the compiler and the kernel. */
#ifndef PYVGPU_CORE_COMPILER_H
#define PYVGPU_CORE_COMPILER_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

#define likely(condition)   __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* For the rare part of a function that is called often. */
#define OUT_OF_LINE __attribute__((noinline, cold, unused))

#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() __asm__ __volatile__("yield" ::: "memory")
#endif

/* Raise *mark* to at least *value*, atomically. */
static inline void raise_mark(uint32_t *mark, uint32_t value)
{
    uint32_t seen = __atomic_load_n(mark, __ATOMIC_SEQ_CST);

    while (seen < value &&
           !__atomic_compare_exchange_n(mark, &seen, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
}

static inline uint64_t clock_now_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t) now.tv_sec * UINT64_C(1000000000) + (uint64_t) now.tv_nsec;
}

/* Exact to a few milliseconds, without a system call; the same for all processes of a boot. */
static inline uint64_t coarse_now_ns(void)
{
    return clock_now_ns(CLOCK_MONOTONIC_COARSE);
}

#endif
