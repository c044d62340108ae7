/* SPDX-License-Identifier: Apache-2.0 */
/* source.c -- NVML's view of the machine; see source.h. */
#include "source.h"

#include "../checkpoint.h"
#include "../clock.h"
#include "../fault.h"
#include "../machine.h"
#include "../mig.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int) SOURCE_DEVICES == (int) CONFIG_DEVICES, "devices of a machine");
_Static_assert((int) SOURCE_PROCESSES == (int) MACHINE_SLOTS, "processes of a machine");

#define STEP_NS (UINT64_C(1) << MODEL_BUSY_SHIFT)

/* Ten steps, about a sixth of a second, are one sample, and six of them a window. */
enum {
    SAMPLE_STEPS = 10,
    WINDOW_STEPS = 6 * SAMPLE_STEPS,
    LATE_STEPS = 1000000000 >> MODEL_BUSY_SHIFT
};
_Static_assert((int) WINDOW_STEPS + (int) LATE_STEPS + 1 < (int) MODEL_BUSY_STEPS,
               "the running step is left out, and what is shown late is still there");

static struct machine *machine;

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static nvmlReturn_t describe(const struct device_config *config, struct nvmlDevice_st *device)
{
    /* config_parse has checked the form. */
    if (sscanf(config->pci, "%x:%x:%x", &device->pci_domain, &device->pci_bus,
               &device->pci_device) != 3)
        return NVML_ERROR_UNKNOWN;
    copy_text(device->uuid, sizeof(device->uuid), config->uuid);
    copy_text(device->name, sizeof(device->name), config->name);
    copy_text(device->serial, sizeof(device->serial), config->serial);
    device->capability_major = config->capability_major;
    device->capability_minor = config->capability_minor;
    device->sm_count = config->sm_count;
    device->sm_clock_mhz = config->sm_clock_khz / 1000;
    device->memory_clock_mhz = config->memory_clock_khz / 1000;
    device->memory_bus_bits = config->memory_bus_bits;
    device->pcie_generation = config->pcie_generation;
    device->power_limit_mw = config->power_limit_mw;
    device->numa_node = config->numa_node;
    device->nvlinks = config->nvlinks;
    device->memory_bytes = config->memory_bytes;
    device->reserved_bytes = config->reserved_bytes;
    return NVML_SUCCESS;
}

nvmlReturn_t source_open(struct nvmlDevice_st *devices, unsigned int *count)
{
    if (machine_open(&machine) != MACHINE_READY)
        return NVML_ERROR_DRIVER_NOT_LOADED; /* machine_open has printed the reason */
    for (uint32_t i = 0; i < machine->config.device_count; i++) {
        devices[i].index = devices[i].parent = i;
        devices[i].gpu_instance = devices[i].compute_instance = NVML_NO_INSTANCE;
        devices[i].is_live = true;
        nvmlReturn_t result = describe(&machine->config.devices[i], &devices[i]);
        if (result != NVML_SUCCESS)
            return result;
    }
    *count = machine->config.device_count;
    fault_poll(machine);
    return NVML_SUCCESS;
}

const char *source_driver_release(void)
{
    return machine->config.driver_release;
}

int source_cuda_version(void)
{
    return (int) machine->config.cuda_version;
}

nvmlReturn_t source_fault(const char *name)
{
    return (nvmlReturn_t) fault_call(machine, name);
}

bool source_lost(unsigned int device)
{
    return fault_is_lost(device);
}

struct machine *source_machine(void)
{
    return machine;
}

bool source_mig_is_hidden(unsigned int device)
{
    return fault_is_mig(device);
}

bool source_mig(unsigned int device)
{
    bool enabled;

    if (fault_is_mig(device) || device >= machine->config.device_count)
        return device < machine->config.device_count;
    enabled = mig_hold(machine, device)->enabled;
    mig_release();
    return enabled;
}

unsigned int source_compute_mode(unsigned int device)
{
    return device < machine->config.device_count ? fault_compute_mode(device) : 0;
}

unsigned int source_minor(unsigned int device)
{
    return fault_minor(device);
}

bool source_mig_is_possible(unsigned int device)
{
    return device < machine->config.device_count && mig_is_possible(machine, device);
}

nvmlReturn_t source_set_mig(unsigned int device, bool enabled)
{
    enum mig_result result = mig_set_mode(machine, device, enabled);

    return result == MIG_DONE     ? NVML_SUCCESS
           : result == MIG_IN_USE ? NVML_ERROR_IN_USE
                                  : NVML_ERROR_OPERATING_SYSTEM;
}

/* Describe a GPU's compute instances; marks them in seen. */
static void refresh_device(struct nvmlDevice_st *devices, uint32_t gpu, bool *seen)
{
    const struct mig_gpu *state = mig_hold(machine, gpu);
    unsigned int index = 0;

    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++) {
            const struct mig_compute_instance *found = &state->instances[id].computes[compute];
            struct nvmlDevice_st *device = &devices[found->unit];

            if (!found->live)
                continue;
            seen[found->unit] = true;
            if (strcmp(device->uuid, found->uuid)) {
                describe(&machine->config.devices[found->unit], device);
                device->index = found->unit;
                device->parent = gpu;
                device->gpu_instance = id;
                device->compute_instance = compute;
                device->is_mig = true;
            }
            device->mig_index = index++;
            device->is_live = true;
        }
    mig_release();
}

void source_refresh(struct nvmlDevice_st *devices)
{
    bool seen[SOURCE_DEVICES] = {false};

    for (uint32_t gpu = 0; gpu < machine->config.device_count; gpu++)
        if (mig_is_possible(machine, gpu))
            refresh_device(devices, gpu, seen);
    for (uint32_t unit = machine->config.device_count; unit < SOURCE_DEVICES; unit++)
        if (!seen[unit])
            devices[unit].is_live = false;
}

nvmlReturn_t source_mig_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    const struct mig_gpu_instance instance =
        mig_hold(machine, device->parent)->instances[device->gpu_instance];
    mig_release();
    if (!instance.live)
        return NVML_ERROR_NOT_FOUND;
    *attributes = (nvmlDeviceAttributes_t) {
        .multiprocessorCount = device->sm_count,
        .sharedCopyEngineCount = instance.profile->copy_engines,
        .sharedDecoderCount = instance.profile->decoders,
        .sharedJpegCount = instance.profile->jpegs,
        .sharedOfaCount = instance.profile->ofas,
        .gpuInstanceSliceCount = instance.profile->slices,
        .computeInstanceSliceCount = instance.computes[device->compute_instance].slices,
        .memorySizeMB = instance.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

uint64_t source_faults_stamp(void)
{
    fault_poll(machine);
    return fault_stamp();
}

void source_xids(void (*found)(void *context, const struct fault_xid *xid), void *context)
{
    fault_each_xid(found, context);
}

/* A device in MIG mode has what its GPU instances have: each once, whatever its compute instances.
 */
uint64_t source_used_bytes(unsigned int device)
{
    uint64_t used = 0;

    machine_reap(machine, false);
    if (!source_mig(device) || source_mig_is_hidden(device))
        return machine_shown_bytes(machine, device);
    const struct mig_gpu state = *mig_hold(machine, device);
    mig_release();
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        if (state.instances[id].live)
            used += machine_shown_bytes(machine, state.instances[id].unit);
    return used;
}

bool source_own_limit(unsigned int device, struct cgroup_figures *figures)
{
    struct cgroup_chain chain;

    if (!source_has_limits())
        return false;
    cgroup_find(&chain);
    return cgroup_read(machine, device, &chain, figures);
}

bool source_has_limits(void)
{
    return machine->config.law.cgroup_limits != 0;
}

int source_set_limits(unsigned int device, const char *path, uint64_t soft, uint64_t hard)
{
    return cgroup_set(machine, device, path, soft, hard);
}

int source_get_limits(unsigned int device, const char *path, struct cgroup_figures *figures)
{
    machine_reap(machine, false);
    return cgroup_get(machine, device, path, figures);
}

static uint32_t slot_limit(void)
{
    return atomic_load_explicit(&machine->state->slot_limit, memory_order_acquire);
}

/* Read a slot's use of a device. False if there is no process, or it has no context there. */
static bool read_slot(unsigned int device, uint32_t slot, struct source_process *process)
{
    struct machine_use *use = &machine->state->uses[device][slot];
    uint64_t uncounted = (uint64_t) machine->config.law.uncounted_bytes;
    uint64_t bytes;
    uint32_t pid;

    if (!machine_slot_is_live(machine, slot) ||
        !atomic_load_explicit(&use->contexts, memory_order_acquire) ||
        checkpoint_is_off_device(&machine->state->checkpoints[slot]))
        return false;
    pid = machine_owner(machine, slot);
    if (!pid)
        return false;
    bytes = atomic_load_explicit(
        &machine->state->uses[machine->config.devices[device].account][slot].bytes,
        memory_order_relaxed);
    *process = (struct source_process) {
        .pid = pid,
        .bytes = bytes - (bytes < uncounted ? bytes : uncounted),
        .busy_ns = machine->state->lanes[device][slot].busy_ns,
        .gpu_instance = NVML_NO_INSTANCE,
        .compute_instance = NVML_NO_INSTANCE,
        .is_mps_client = atomic_load(&machine->state->slots[slot].mps_server) != 0,
    };
    return true;
}

/* Append the processes of the compute instances that are the unit, or of all for the device. */
static size_t add_instances(unsigned int device, struct source_process *processes, size_t count)
{
    uint32_t gpu = machine->config.devices[device].parent;
    const struct mig_gpu state = *mig_hold(machine, gpu);

    mig_release();
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++) {
            const struct mig_compute_instance *found = &state.instances[id].computes[compute];

            if (!found->live || (device != gpu && device != found->unit))
                continue;
            for (uint32_t slot = 0; slot < slot_limit() && count < SOURCE_PROCESSES; slot++)
                if (read_slot(found->unit, slot, &processes[count])) {
                    processes[count].gpu_instance = id;
                    processes[count++].compute_instance = compute;
                }
        }
    return count;
}

size_t source_processes(unsigned int device, struct source_process *processes)
{
    size_t count = 0;

    machine_reap(machine, false);
    if (device >= machine->config.device_count || source_mig(device))
        return add_instances(device, processes, 0);
    for (uint32_t slot = 0; slot < slot_limit(); slot++)
        count += read_slot(device, slot, &processes[count]);
    return count;
}

/* Number of the history's steps that NVML shows, with the law's delay. */
static uint64_t shown_steps(void)
{
    return (clock_now() - machine->config.law.nvml_load_late_ns) >> MODEL_BUSY_SHIFT;
}

static unsigned int percent(uint64_t ns, uint64_t of_ns)
{
    uint64_t share = (100 * ns + of_ns / 2) / of_ns;

    return share < 100 ? (unsigned int) share : 100;
}

/* Load over `steps` steps of a history, up to and without step `end`. */
static struct source_load load_over(const struct model_busy *history, uint64_t end, uint64_t steps)
{
    struct source_load load = {0};
    uint64_t sm_ns = 0, copy_ns = 0, last = 0;

    for (uint64_t step = end - steps; step < end; step++) {
        const struct model_busy *busy = &history[step % MODEL_BUSY_STEPS];

        if (busy->step != step)
            continue; /* older: nothing happened in this one */
        sm_ns += busy->sm_ns;
        copy_ns += busy->copy_ns;
        if (busy->sm_ns || busy->copy_ns)
            last = step + 1;
    }
    if (last) {
        uint64_t age = clock_now() - last * STEP_NS;

        load.time_us = (clock_read(CLOCK_REALTIME) - age) / 1000;
        load.sm = percent(sm_ns, steps * STEP_NS);
        load.memory = percent(copy_ns, steps * STEP_NS);
    }
    return load;
}

size_t source_device_loads(unsigned int device, struct source_load *loads, size_t capacity)
{
    size_t count = 0;

    machine_advance_device(machine, device);
    uint64_t end = shown_steps();
    const struct model_busy *history = machine->state->devices[device].model.history;
    for (uint64_t left = WINDOW_STEPS; left && count < capacity; left -= SAMPLE_STEPS) {
        uint64_t until = end - left + SAMPLE_STEPS;
        uint64_t age = clock_now() - until * STEP_NS;

        loads[count] = load_over(history, until, SAMPLE_STEPS);
        loads[count++].time_us = (clock_read(CLOCK_REALTIME) - age) / 1000;
    }
    machine_unlock_device(machine, device);
    return count;
}

struct source_load source_device_load(unsigned int device)
{
    machine_advance_device(machine, device);
    uint64_t end = shown_steps();
    struct source_load load =
        load_over(machine->state->devices[device].model.history, end, WINDOW_STEPS);
    machine_unlock_device(machine, device);
    return load;
}

size_t source_process_loads(unsigned int device, struct source_process *processes,
                            struct source_load *loads)
{
    size_t count = 0;

    machine_reap(machine, false);
    machine_advance_device(machine, device);
    uint64_t end = shown_steps();
    for (uint32_t slot = 0; slot < slot_limit(); slot++) {
        if (read_slot(device, slot, &processes[count]))
            loads[count++] =
                load_over(machine->state->lanes[device][slot].history, end, WINDOW_STEPS);
    }
    machine_unlock_device(machine, device);
    return count;
}

uint64_t source_busy_ns(unsigned int device)
{
    machine_advance_device(machine, device);
    uint64_t busy_ns = machine->state->devices[device].model.busy_ns;
    machine_unlock_device(machine, device);
    return busy_ns;
}
