/* SPDX-License-Identifier: Apache-2.0 */
/* mig.h -- GPU instances and compute instances of the machine's devices.
 *
 * The file `mig` in the machine's folder holds the mode and the instances, and outlives every
 * process; pyvgpu/simulation/mig.py writes the first one and reads it. Its lines:
 *
 *   gpu GPU                             the device is in MIG mode
 *   gi GPU GI PROFILE START UNIT        a GPU instance; PROFILE is the profile's name
 *   ci GPU GI CI SLICES START UNIT UUID a compute instance, in compute slices
 *
 * A change writes a new file under the lock of `mig.lock`, which no caller with state->lock may
 * take. A unit is an entry of machine_config.devices behind the devices: a compute instance is one,
 * with its part of the multiprocessors. Its memory is that of its GPU instance, which has the
 * account of its own unit.
 */
#ifndef PYVGPU_SIMULATOR_MIG_H
#define PYVGPU_SIMULATOR_MIG_H

#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

enum {
    MIG_GPU_INSTANCES = 15,    /* ids of GPU instances of a device */
    MIG_COMPUTE_INSTANCES = 8, /* ids of compute instances in a GPU instance */
    MIG_UUID = 48,
    MIG_COMPUTE_SLICES = 7, /* in all GPU instances of a device */
};

struct mig_compute_instance {
    bool live;
    uint32_t slices;
    uint32_t start;
    uint32_t unit;
    char uuid[MIG_UUID];
};

struct mig_gpu_instance {
    bool live;
    const struct mig_profile *profile;
    uint32_t start; /* in memory slices */
    uint32_t unit;
    struct mig_compute_instance computes[MIG_COMPUTE_INSTANCES];
};

struct mig_gpu {
    bool enabled;
    struct mig_gpu_instance instances[MIG_GPU_INSTANCES];
};

enum mig_result {
    MIG_DONE,
    MIG_FULL,   /* no place, or the place is taken */
    MIG_IN_USE, /* processes or compute instances are there */
    MIG_ABSENT, /* there is no such instance */
    MIG_INVALID,
    MIG_BROKEN, /* the file cannot be written */
};

/* Read the file again if it changed, then hold the instances still until mig_release. A change also
 * excludes those of other processes. */
const struct mig_gpu *mig_hold(struct machine *machine, uint32_t gpu);
void mig_release(void);

/* Around a fork: the child must not inherit a lock that a thread of the parent holds. */
void mig_before_fork(void);
void mig_after_fork(void);

/* Can a device have instances? */
static inline bool mig_is_possible(const struct machine *machine, uint32_t gpu)
{
    return machine->config.devices[gpu].mig_profile_count > 0;
}

/* Memory slices of a device that can have instances. */
uint32_t mig_memory_slices(const struct machine *machine, uint32_t gpu);

/* Multiprocessors of so many compute slices of a GPU instance of the profile. */
uint32_t mig_compute_sms(const struct mig_profile *profile, uint32_t slices);

/* The name of a device's compute instance after " MIG ": 1g.10gb, or 1c.3g.40gb for a part. */
void mig_compute_name(const struct mig_gpu_instance *instance, uint32_t slices, char *text,
                      size_t size);

/* Changes, visible to all processes when the call returns. A start of -1 is any. */
enum mig_result mig_set_mode(struct machine *machine, uint32_t gpu, bool enabled);
enum mig_result mig_create(struct machine *machine, uint32_t gpu, const struct mig_profile *profile,
                           int start, uint32_t *id);
enum mig_result mig_destroy(struct machine *machine, uint32_t gpu, uint32_t id);
enum mig_result mig_create_compute(struct machine *machine, uint32_t gpu, uint32_t id,
                                   uint32_t slices, int start, uint32_t *compute);
enum mig_result mig_destroy_compute(struct machine *machine, uint32_t gpu, uint32_t id,
                                    uint32_t compute);

/* Count a context of the process on a unit, so that its instances stay. False: the unit is no
 * longer the compute instance with this UUID. */
bool mig_join(struct machine *machine, uint32_t unit, const char *uuid, uint32_t slot);

/* Fill units (room for CONFIG_DEVICES) with those of the device's compute instances, in the order
 * of their ids; returns how many. Held. */
uint32_t mig_units(const struct mig_gpu *gpu, uint32_t *units);

#endif
