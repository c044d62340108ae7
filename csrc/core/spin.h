/* SPDX-License-Identifier: Apache-2.0 */
/* spin.h -- process-local spin lock, held for a few dozen instructions and never over a call.
 *
 * After spinning for long, a waiter sleeps instead of yielding: the holder may be off the CPU, and
 * if it has a lower real-time priority, it would not run while a waiter only yields.
 */
#ifndef PYVGPU_CORE_SPIN_H
#define PYVGPU_CORE_SPIN_H

#include "core/compiler.h"

#include <pthread.h>

#define SPIN_LOOKS 200

/* Keeps errno, and is not a cancellation point: the thread may be in the midst of a charge. */
static inline void spin_nap(void)
{
    static const struct timespec nap = {.tv_nsec = 20000};
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
    pthread_setcancelstate(cancel, NULL);
}

static inline void spin_wait(const int *lock)
{
    for (unsigned looks = 0; __atomic_load_n(lock, __ATOMIC_RELAXED); looks++) {
        if (looks < SPIN_LOOKS)
            cpu_relax();
        else
            spin_nap();
    }
}

static inline void spin_lock(int *lock)
{
    while (unlikely(__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)))
        spin_wait(lock);
}

static inline void spin_unlock(int *lock)
{
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

#endif
