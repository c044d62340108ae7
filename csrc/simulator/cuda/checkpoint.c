/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c -- cuCheckpointProcess*: suspend a process, this one or another; ../checkpoint.h.
 *
 * None of these needs cuInit. Drivers before CUDA 12.8 do not have them. Restoring to other devices
 * and storing the bytes elsewhere is not simulated.
 */
#include <string.h>

#include "process.h"

enum {
    SINCE = 12080,
    REMAPPING_SINCE = 13000,
    STORAGE_SINCE = 13040,
};

static CUresult result_of(enum checkpoint_result result)
{
    switch (result) {
    case CHECKPOINT_DONE:
        return CUDA_SUCCESS;
    case CHECKPOINT_NO_PROCESS:
        return CUDA_ERROR_OPERATING_SYSTEM;
    case CHECKPOINT_NO_CUDA:
        return CUDA_ERROR_NOT_INITIALIZED;
    case CHECKPOINT_WRONG_STATE:
        return CUDA_ERROR_ILLEGAL_STATE;
    case CHECKPOINT_TIMED_OUT:
        return CUDA_ERROR_NOT_READY;
    case CHECKPOINT_NOT_SUPPORTED:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CHECKPOINT_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_UNKNOWN;
}

/* The machine, if its driver has these calls and no fault is set for this one. */
static CUresult find_machine(const char *name, int pid, struct machine **machine)
{
    if (machine_open(machine) != MACHINE_READY)
        return CUDA_ERROR_NO_DEVICE;
    if ((*machine)->config.cuda_version < SINCE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    return (CUresult) fault_call(*machine, name);
}

static bool is_zero(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const char *) bytes)[i])
            return false;
    return true;
}

#define FIND(pid, machine)                                         \
    do {                                                           \
        CUresult refused = find_machine(__func__, (pid), machine); \
        if (refused != CUDA_SUCCESS)                               \
            return refused;                                        \
    } while (0)

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    enum checkpoint_state found = CHECKPOINT_FAILED;
    struct machine *machine;
    CUresult result;

    FIND(pid, &machine);
    REQUIRE(state);
    result = result_of(checkpoint_read(machine, pid, &found));
    if (result == CUDA_SUCCESS)
        *state = (CUprocessState) found;
    return result;
}

/* Here the first thread of the process stands for the driver's own thread. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    enum checkpoint_state state;
    struct machine *machine;
    CUresult result;

    FIND(pid, &machine);
    REQUIRE(tid);
    result = result_of(checkpoint_read(machine, pid, &state));
    if (result == CUDA_SUCCESS)
        *tid = pid;
    return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct machine *machine;

    FIND(pid, &machine);
    REQUIRE(!args || is_zero((char *) args + sizeof(args->timeoutMs),
                             sizeof(*args) - sizeof(args->timeoutMs)));
    return result_of(checkpoint_lock(machine, pid, args ? args->timeoutMs : 0));
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct machine *machine;

    FIND(pid, &machine);
    if (args && machine->config.cuda_version >= STORAGE_SINCE && args->customStorageInfo_out)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(!args || is_zero(args, sizeof(*args)));
    return result_of(checkpoint_save(machine, pid));
}

/* Pairs may name each device as itself. */
static bool is_remapped(const CUcheckpointRestoreArgs *args)
{
    for (unsigned int i = 0; i < args->gpuPairsCount; i++)
        if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof(CUuuid)))
            return true;
    return false;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct machine *machine;

    FIND(pid, &machine);
    if (args && machine->config.cuda_version >= REMAPPING_SINCE) {
        REQUIRE(!args->gpuPairsCount == !args->gpuPairs);
        REQUIRE(is_zero(args->reserved, sizeof(args->reserved)));
        if (is_remapped(args) || args->customStorageInfo_out)
            return CUDA_ERROR_NOT_SUPPORTED;
    } else {
        REQUIRE(!args || is_zero(args, sizeof(*args)));
    }
    return result_of(checkpoint_restore(machine, pid));
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    struct machine *machine;

    FIND(pid, &machine);
    REQUIRE(!args || is_zero(args, sizeof(*args)));
    return result_of(checkpoint_unlock(machine, pid));
}
