/* SPDX-License-Identifier: Apache-2.0 */
/* process.c -- this process's registration with the machine, and the charges of its contexts. */
#include "process.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "fault.h"
#include "memory.h"
#include "mig.h"
#include "queue.h"

static struct process_page no_page;

struct process process;
__thread unsigned int process_depth;
__thread struct machine_inside *process_inside;
struct process_page *process_page = &no_page;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* The page is there and wiped: the parent had called cuInit. */
static bool is_forked_child(void)
{
    return process_page != &no_page && process_page->state == PROCESS_NONE;
}

CUresult process_open(void)
{
    int code;

    if (is_forked_child())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (process_page->state == PROCESS_ENDING)
        return CUDA_ERROR_DEINITIALIZED;
    if (machine_open(&process.machine) != MACHINE_READY)
        return CUDA_ERROR_NO_DEVICE;
    code = fault_call(process.machine, "cuInit");
    return (CUresult) code;
}

static const struct mps_server no_server = {.connection = -1};
static uint32_t mps_limits[CONFIG_DEVICES];

/* Under MPS: the limits of this process, and its registration. */
static void join_server(uint32_t slot, const struct mps_server *mps)
{
    unsigned int index = 0;

    for (uint32_t device = 0; device < process.machine->config.unit_count; device++) {
        const struct device_config *config = &process.machine->config.devices[device];

        if (!(mps->devices & UINT64_C(1) << device))
            continue;
        mps_limits[device] = mps_units(config, mps);
        process.machine->memory_limits[config->account] = mps_memory(config, index++, mps);
    }
    mps_join(process.machine, mps, slot);
}

uint32_t process_units(uint32_t device)
{
    return mps_limits[device] ? mps_limits[device]
                              : process.machine->config.devices[device].sm_count;
}

void process_fail_clients(CUresult error)
{
    if (process.mps.connection >= 0)
        mps_fail(process.machine, process.mps.slot, (int) error);
}

CUresult process_start(const int *devices, int count, const struct mps_server *mps)
{
    struct process_page *page;
    int slot;

    if (process_page->state == PROCESS_READY)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&starting);
    if (process_page->state == PROCESS_READY) {
        pthread_mutex_unlock(&starting);
        return CUDA_SUCCESS;
    }
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK)) {
        pthread_mutex_unlock(&starting);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    slot = machine_claim_slot(process.machine);
    if (slot < 0) {
        munmap(page, 4096);
        pthread_mutex_unlock(&starting);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    process.slot = (uint32_t) slot;
    process.machine->own = &process.machine->state->checkpoints[slot];
    process.generation = process.machine->state->slots[slot].generation;
    process.device_count = count;
    for (int i = 0; i < count; i++)
        process.devices[i] = devices[i];
    process.mps = mps->connection >= 0 ? *mps : no_server;
    process.mps_error = &process.machine->state->slots[slot].mps_error;
    if (mps->connection >= 0)
        join_server((uint32_t) slot, mps);
    memcpy(process.mig_uuid, process.machine->config.devices[devices[0]].uuid, CONFIG_TEXT);
    __atomic_store_n(&page->state, PROCESS_READY, __ATOMIC_RELEASE);
    __atomic_store_n(&process_page, page, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&starting);
    return CUDA_SUCCESS;
}

/* At a regular exit release at once what the process held; later calls return DEINITIALIZED. */
__attribute__((destructor)) static void end_process(void)
{
    if (process_page->state != PROCESS_READY)
        return;
    process_page->state = PROCESS_ENDING;
    machine_release_slot(process.machine, process.slot);
}

CUresult process_refusal(const char *name)
{
    if (process_page->state == PROCESS_ENDING)
        return CUDA_ERROR_DEINITIALIZED;
    if (process_page->state == PROCESS_NONE)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (process.mps.connection >= 0 && mps_is_gone(process.mps.connection))
        mps_fail(process.machine, process.mps.slot, MPS_RPC_FAILURE);
    if (atomic_load(process.mps_error))
        return (CUresult) atomic_load(process.mps_error);
    return (CUresult) fault_call(process.machine, name);
}

bool process_passes_lock(void)
{
    enum checkpoint_state state;

    if (process_page->state != PROCESS_READY || !process.machine->config.law.sync_ignores_lock)
        return false;
    state = (enum checkpoint_state) atomic_load(&process.machine->own->state);
    if (state == CHECKPOINT_CHECKPOINTED)
        raise(SIGSEGV);
    return state == CHECKPOINT_LOCKED;
}

int process_device(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < process.device_count ? process.devices[ordinal] : -1;
}

const struct device_config *process_device_config(CUdevice ordinal)
{
    int device = process_device(ordinal);

    return device < 0 ? NULL : &process.machine->config.devices[device];
}

static bool is_lost(uint32_t device)
{
    return fault_is_lost(process.machine->config.devices[device].parent);
}

/* Let the process's work on the device run together with that of the server's other clients. */
static void join_group(uint32_t device)
{
    struct model model = machine_model(process.machine, device);

    if (process.mps.connection < 0 || !process.machine->config.law.mps_overlap)
        return;
    machine_lock_device(process.machine, device);
    model_join(&model, process.slot, process.mps.slot, mps_limits[device]);
    machine_unlock_device(process.machine, device);
}

/* Count a context. False: the compute instance has been destroyed. */
static bool join(uint32_t device, struct machine_use *use)
{
    if (device >= process.machine->config.device_count)
        return mig_join(process.machine, device, process.mig_uuid, process.slot);
    atomic_fetch_add(&use->contexts, 1);
    return true;
}

/* The first context of a process takes the most. */
static uint64_t context_bytes(struct machine_use *use, CUdevice ordinal)
{
    uint64_t bytes = process_device_config(ordinal)->context_bytes;

    return atomic_load(&use->contexts)
               ? bytes * process.machine->config.law.second_context_percent / 100
               : bytes;
}

CUresult process_open_context(CUdevice ordinal, struct work_context *work)
{
    int device = process_device(ordinal);
    struct machine_use *use;
    CUresult result;

    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (is_lost((uint32_t) device))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    use = &process.machine->state->uses[device][process.slot];
    work->id = atomic_fetch_add(&process.last_id, 1) + 1;
    work->ordinal = ordinal;
    work->device = (uint32_t) device;
    work->error = CUDA_SUCCESS;
    work->streams = work->legacy = NULL;
    work->charged = context_bytes(use, ordinal);
    if (!memory_heap(work->device) ||
        !machine_make_lane(process.machine, work->device, process.slot))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!machine_charge(process.machine, work->device, process.slot, work->charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    join_group(work->device);
    result = stream_open_default(work);
    if (result == CUDA_SUCCESS && !join(work->device, use)) {
        stream_close_all(work);
        result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (result != CUDA_SUCCESS)
        machine_discharge(process.machine, work->device, process.slot, work->charged);
    return result;
}

void process_close_context(struct work_context *work)
{
    struct machine_use *use = &process.machine->state->uses[work->device][process.slot];

    queue_drain(work->device);
    stream_close_all(work);
    memory_free_context(work->id);
    atomic_fetch_sub(&use->contexts, 1);
    machine_discharge(process.machine, work->device, process.slot, work->charged);
}

CUresult process_synchronize_context(struct work_context *work)
{
    queue_drain(work->device);
    pool_trim_all(work->device);
    return (CUresult) atomic_load_explicit(&work->error, memory_order_relaxed);
}

CUresult process_enter_context(struct work_context **work)
{
    int error;

    *work = current_context();
    if (!*work)
        return CUDA_ERROR_INVALID_CONTEXT;
    error = atomic_load_explicit(&(*work)->error, memory_order_relaxed);
    if (error)
        return (CUresult) error;
    return is_lost((*work)->device) ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}
