/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h -- synchronisation of the threads that share a virtual clock.
 *
 * A thread that is ahead of another one by more than AHEAD_NS waits for it. A thread that is found
 * to be stopped, or waiting for something other than the clock (a pipe, a child), is away: it is
 * not waited for, and later continues at the others' time. No thread is made to wait while it
 * holds a mutex.
 */
#ifndef PYVGPU_BENCH_SHARE_TURNS_H
#define PYVGPU_BENCH_SHARE_TURNS_H

#include "virtualclock.h"

#include <stdbool.h>

/* Use the time of *clock*; called before anything else. */
void turns_begin(struct virtualclock *clock);

/* Make the calling thread take part, at the others' time if it is new or was away. False: time is
 * real, or the table of threads is full. */
bool turns_take_part(void);
void turns_leave(void);

/* The time of the calling thread, which takes part. */
uint64_t turns_now(void);

/* Advance the calling thread by so much. */
void turns_pass(uint64_t ns);

/* Sleep until then; returns when all threads have reached that time. */
void turns_sleep_until(uint64_t ns);

/* Wait for another thread of the process, which calls *name*: no other thread waits for this one
 * meanwhile. turns_return() when it goes on; it is then at its caller's time. */
void turns_wait_for_call(const void *name);
void turns_call(const void *name);
void turns_return(void);

/* The calling thread has locked a mutex, or unlocked one. */
void turns_lock(void);
void turns_unlock(void);

#endif
