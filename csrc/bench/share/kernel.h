/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h -- the kernel's real time and thread states, in spite of the virtual clock. */
#ifndef PYVGPU_BENCH_SHARE_KERNEL_H
#define PYVGPU_BENCH_SHARE_KERNEL_H

#include <stdint.h>

/* CLOCK_MONOTONIC. */
uint64_t kernel_now_ns(void);

/* The state letter of a thread, as in /proc/PID/stat; X if there is no such thread. */
char kernel_state_of(uint32_t process, uint32_t thread);

/* CPU time of a thread. */
uint64_t kernel_ran_ns(uint32_t process, uint32_t thread);

#endif
