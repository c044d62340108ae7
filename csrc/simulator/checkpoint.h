/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h -- suspension of a process's use of its devices by another process.
 *
 * Locked, a process waits in its next call. Checkpointed, its bytes are off the devices, too: here
 * only the accounts change, because the bytes of simulated devices are in host memory anyway. The
 * process that acts does all the work, under the record's lock; if it is killed, an action that
 * has begun ends at its time all the same, as it does in NVIDIA's driver, where the target's own
 * threads do the work. A target that is stopped (SIGSTOP) makes every action wait.
 */
#ifndef PYVGPU_SIMULATOR_CHECKPOINT_H
#define PYVGPU_SIMULATOR_CHECKPOINT_H

#include "machine.h"

/* The first four are those of CUprocessState. */
enum checkpoint_state {
    CHECKPOINT_RUNNING,
    CHECKPOINT_LOCKED,
    CHECKPOINT_CHECKPOINTED,
    CHECKPOINT_FAILED,
    CHECKPOINT_LOCKING, /* new calls wait, and those in progress have not ended yet */
};

enum checkpoint_result {
    CHECKPOINT_DONE,
    CHECKPOINT_NO_PROCESS,    /* it does not exist, has ended, or is another user's */
    CHECKPOINT_NO_CUDA,       /* it has not called cuInit, or is a zombie */
    CHECKPOINT_WRONG_STATE,   /* nothing happened */
    CHECKPOINT_TIMED_OUT,     /* calls or work went on for too long; it runs on */
    CHECKPOINT_NOT_SUPPORTED, /* it has memory of a kind that cannot be moved */
    CHECKPOINT_NO_MEMORY,
};

/* --- the process itself ----------------------------------------------------------------------- */

/* Prepare the record of a slot that is being claimed. */
void checkpoint_begin(struct machine_checkpoint *record);

/* The counter for calls of the calling thread, which stays the same. */
struct machine_inside *checkpoint_counter(struct machine_checkpoint *record);

/* Wait until the process is not locked; counted as inside on return. */
void checkpoint_wait(struct machine_checkpoint *record, struct machine_inside *inside);

static inline void checkpoint_enter(struct machine_checkpoint *record,
                                    struct machine_inside *inside)
{
    atomic_fetch_add(&inside->count, 1);
    if (__builtin_expect(atomic_load(&record->state) != CHECKPOINT_RUNNING, 0))
        checkpoint_wait(record, inside);
}

static inline void checkpoint_leave(struct machine_inside *inside)
{
    atomic_fetch_sub(&inside->count, 1);
}

/* --- other processes -------------------------------------------------------------------------- */

static inline bool checkpoint_is_off_device(const struct machine_checkpoint *record)
{
    return atomic_load(&record->state) == CHECKPOINT_CHECKPOINTED;
}

/* All of these take the pid of a process, or of one of its threads. They wait for an action that
 * another process has begun.
 */
enum checkpoint_result checkpoint_read(struct machine *machine, int pid,
                                       enum checkpoint_state *state);

/* timeout_ms 0: wait for as long as it takes. */
enum checkpoint_result checkpoint_lock(struct machine *machine, int pid, unsigned int timeout_ms);
enum checkpoint_result checkpoint_save(struct machine *machine, int pid);

/* Without room on a device, all later attempts fail, too, and what it got stays in use. */
enum checkpoint_result checkpoint_restore(struct machine *machine, int pid);
enum checkpoint_result checkpoint_unlock(struct machine *machine, int pid);

#endif
