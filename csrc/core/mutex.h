/* SPDX-License-Identifier: Apache-2.0 */
/* mutex.h -- a pthread mutex with its place in the order of lock.h. */
#ifndef PYVGPU_CORE_MUTEX_H
#define PYVGPU_CORE_MUTEX_H

#include "core/lock.h"

#include <pthread.h>

static inline void mutex_lock(pthread_mutex_t *mutex, enum lock_rank rank)
{
    lock_check(rank, mutex);
    pthread_mutex_lock(mutex);
    lock_note_taken(rank, mutex);
}

static inline void mutex_unlock(pthread_mutex_t *mutex, enum lock_rank rank)
{
    lock_note_released(rank);
    pthread_mutex_unlock(mutex);
}

#endif
