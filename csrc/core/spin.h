/* SPDX-License-Identifier: Apache-2.0 */
/* spin.h -- a spin lock with its place in the order of lock.h.
 *
 * It is held for a few dozen instructions and never over a driver call. After spinning for long, a
 * waiter sleeps instead of yielding: the holder may be off the CPU, and if it has a lower real-time
 * priority, it would not run while a waiter only yields.
 */
#ifndef PYVGPU_CORE_SPIN_H
#define PYVGPU_CORE_SPIN_H

#include "core/compiler.h"
#include "core/lock.h"

#include <pthread.h>

#define SPIN_TRIES 200

/* Keeps errno, and is not a cancellation point: the thread may be in the midst of a charge. */
static inline void spin_nap(void)
{
    static const struct timespec nap = {.tv_nsec = 20000};
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
    pthread_setcancelstate(cancel, NULL);
}

/* In no function that takes a lock: it would save registers and check its stack for this alone. */
static OUT_OF_LINE void spin_wait(const int *lock)
{
    for (unsigned tries = 0; __atomic_load_n(lock, __ATOMIC_RELAXED); tries++) {
        if (tries < SPIN_TRIES)
            cpu_relax();
        else
            spin_nap();
    }
}

static inline void spin_lock(int *lock, enum lock_rank rank)
{
    lock_check(rank, lock);
    while (unlikely(__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)))
        spin_wait(lock);
    lock_note_taken(rank, lock);
}

/* 0 if another thread has it, without waiting: such a lock is taken in any order. */
static inline int spin_try_lock(int *lock, enum lock_rank rank)
{
    if (__atomic_load_n(lock, __ATOMIC_RELAXED) || __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
        return 0;
    lock_note_taken(rank, lock);
    return 1;
}

static inline void spin_unlock(int *lock, enum lock_rank rank)
{
    lock_note_released(rank);
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
