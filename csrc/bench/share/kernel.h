/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h -- what the kernel says of time and threads, however virtual the clock is. */
#ifndef PYVGPU_BENCH_KERNEL_H
#define PYVGPU_BENCH_KERNEL_H

#include <stdint.h>

/* CLOCK_MONOTONIC. */
uint64_t kernel_now_ns(void);

/* The letter for what a thread does, as in /proc/PID/stat; X if there is none. */
char kernel_state_of(uint32_t process, uint32_t thread);

/* For how long it has had a processor. */
uint64_t kernel_ran_ns(uint32_t process, uint32_t thread);

#endif
