/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h -- the threads that share a virtual clock: how far each has come, and who waits for whom.
 *
 * A thread that is ahead of another one by more than AHEAD_NS waits for it. One that waits for
 * something else than the clock (a pipe, a child) or is stopped is not waited for once it was seen
 * to, and goes on where the others are when it comes back. Nobody is made to wait while it holds a
 * mutex.
 */
#ifndef PYVGPU_BENCH_TURNS_H
#define PYVGPU_BENCH_TURNS_H

#include "virtualclock.h"

#include <stdbool.h>

/* Let time be that of *clock*; before anything else. */
void turns_begin(struct virtualclock *clock);

/* Have the calling thread take part, and be where the others are if it is new or was away. False:
 * time is real, or there is no place for it. */
bool turns_take_part(void);
void turns_leave(void);

/* How far the calling thread has come, which takes part. */
uint64_t turns_now(void);

/* Something took it so long. */
void turns_pass(uint64_t ns);

/* It sleeps until then, and is back when all have come so far. */
void turns_sleep_until(uint64_t ns);

/* It waits for another thread of its process, which calls *name*: no other thread waits for
 * it meanwhile. turns_return() when it goes on; it is then where its caller was. */
void turns_wait_for_call(const void *name);
void turns_call(const void *name);
void turns_return(void);

/* The calling thread has locked a mutex, or unlocked one. */
void turns_lock(void);
void turns_unlock(void);

#endif
