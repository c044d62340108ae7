/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c -- hooks of the calls that suspend and resume processes.
 *
 * A program may checkpoint the processes of its own run or container: their memory stays charged.
 * Two things are refused. While the supervisor or the agent suspends the run, a restore would take
 * memory back that may be reserved for others by now. Processes of other runs are their own
 * supervisors' to move.
 *
 * The supervisor makes these calls itself, without the shim.
 */
#include "shim/driver.h"
#include "shim/shim.h"
#include "shim/suspension.h"

#include <pthread.h>

static int is_of_this_region(int pid)
{
    const struct usage_slot *slots = shim.region.usage->slots;

    for (unsigned slot = 0; pid > 0 && slot < REGION_SLOTS; slot++)
        if (__atomic_load_n(&slots[slot].pid, __ATOMIC_ACQUIRE) == (uint32_t) pid)
            return 1;
    return 0;
}

static void leave(void *none)
{
    (void) none;
    suspension_leave();
}

/* Counted like a call that waits, so that a suspension begins only after it has returned. A process
 * without a slot is not counted: it has no device memory of its own to bring back. */
#define CHECKPOINT(symbol, pid, args)                      \
    do {                                                   \
        CUresult result;                                   \
                                                           \
        if (shim_attach() != 0)                            \
            return CUDA_ERROR_NOT_INITIALIZED;             \
        if (!is_of_this_region(pid) || suspension_is_on()) \
            return CUDA_ERROR_NOT_PERMITTED;               \
        if (!shim.open)                                    \
            return driver.symbol(pid, args);               \
        if (!suspension_try_enter())                       \
            return CUDA_ERROR_NOT_PERMITTED;               \
        pthread_cleanup_push(leave, NULL);                 \
        result = driver.symbol(pid, args);                 \
        pthread_cleanup_pop(1);                            \
        return result;                                     \
    } while (0)

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    CHECKPOINT(cuCheckpointProcessLock, pid, args);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    CHECKPOINT(cuCheckpointProcessCheckpoint, pid, args);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    CHECKPOINT(cuCheckpointProcessRestore, pid, args);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    CHECKPOINT(cuCheckpointProcessUnlock, pid, args);
}
