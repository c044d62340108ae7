/* SPDX-License-Identifier: Apache-2.0 */
/* source.h -- interface of the simulated NVML to the machine.
 *
 * The only connection between nvml/ and the rest of the simulator: configuration, memory by
 * process, load of a device, faults. It has no state of its own beyond the mapping of the
 * machine, and claims no slot in it: reading NVML is not using CUDA.
 */
#ifndef PYVGPU_SIMULATOR_NVML_SOURCE_H
#define PYVGPU_SIMULATOR_NVML_SOURCE_H

#include "api.h"

#include "../cgroup.h"

#define NVML_NO_INSTANCE 0xffffffffU /* no MIG instance: shown as N/A */

enum { SOURCE_DEVICES = 64, SOURCE_PROCESSES = 1024, SOURCE_MIG_DEVICES = 7 };

struct source_process {
    uint32_t pid;
    uint64_t bytes;   /* contexts and allocations on this device */
    uint64_t busy_ns; /* device time it has had so far */
    uint32_t gpu_instance;
    uint32_t compute_instance; /* NVML_NO_INSTANCE outside MIG */
    bool is_mps_client;
};

/* How busy a device, or one process on it, was up to a moment. */
struct source_load {
    uint64_t time_us;    /* wall clock */
    unsigned int sm;     /* percent */
    unsigned int memory; /* percent */
};

/* Map the machine and fill in the devices. A fork may happen at any time after. */
nvmlReturn_t source_open(struct nvmlDevice_st *devices, unsigned int *count);
const char *source_driver_release(void);
int source_cuda_version(void);

/* 0, or the result that the faults file injects into this call. */
nvmlReturn_t source_fault(const char *name);
bool source_lost(unsigned int device);

/* Is the device in MIG mode; does a fault put it there, and hide it from programs; can it be? */
bool source_mig(unsigned int device);
bool source_mig_is_hidden(unsigned int device);
bool source_mig_is_possible(unsigned int device);

/* The device's compute mode, as a fault says; else the default one. */
unsigned int source_compute_mode(unsigned int device);
unsigned int source_minor(unsigned int device);

/* Set the mode: SUCCESS, IN_USE, OPERATING_SYSTEM. */
nvmlReturn_t source_set_mig(unsigned int device, bool enabled);

/* Describe the compute instances in devices (room for SOURCE_DEVICES), if they changed. */
void source_refresh(struct nvmlDevice_st *devices);

/* The attributes of a MIG device. */
nvmlReturn_t source_mig_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);

struct machine *source_machine(void);

/* A stamp of the faults file, which changes when it is written, and the Xids in it.
 * source_xids calls found(context, xid) for each, in order.
 */
uint64_t source_faults_stamp(void);
struct fault_xid;
void source_xids(void (*found)(void *context, const struct fault_xid *xid), void *context);

/* Bytes that contexts and allocations of live processes hold on the device. */
uint64_t source_used_bytes(unsigned int device);

/* The limit and usage of the device for the calling process, if one of its cgroups has a limit. */
bool source_own_limit(unsigned int device, struct cgroup_figures *figures);

/* The limits of a cgroup by its folder: 0, or an errno as of cgroup.h. */
bool source_has_limits(void);
int source_set_limits(unsigned int device, const char *path, uint64_t soft, uint64_t hard);
int source_get_limits(unsigned int device, const char *path, struct cgroup_figures *figures);

/* Live processes that have a context on the device; at most SOURCE_PROCESSES. */
size_t source_processes(unsigned int device, struct source_process *processes);

/* Load of the device over about the last second: as one value, and in samples, the newest last. */
struct source_load source_device_load(unsigned int device);
size_t source_device_loads(unsigned int device, struct source_load *loads, size_t capacity);

/* Load of each process over about the last second: loads[i] is that of processes[i], its time
 * that of the last work, 0 if there was none.
 */
size_t source_process_loads(unsigned int device, struct source_process *processes,
                            struct source_load *loads);

/* Total device time of all processes so far. */
uint64_t source_busy_ns(unsigned int device);

#endif
