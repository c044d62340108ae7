/* SPDX-License-Identifier: Apache-2.0 */
/* mig_fit.c -- where an instance fits on a device; see mig_fit.h. */
#include "mig_fit.h"

static bool is_free(const struct mig_gpu *gpu, uint32_t start, uint32_t size)
{
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++) {
        const struct mig_gpu_instance *other = &gpu->instances[id];

        if (other->live && start < other->start + other->profile->size &&
            other->start < start + size)
            return false;
    }
    return true;
}

/* Memory slices are not all: the compute slices and the multiprocessors are shared out, too. */
static bool leaves_compute(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                           const struct mig_profile *profile)
{
    uint32_t slices = profile->slices, sms = profile->sms, same = 1;

    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++) {
        const struct mig_gpu_instance *other = &state->instances[id];

        if (!other->live)
            continue;
        slices += other->profile->slices;
        sms += other->profile->sms;
        same += other->profile == profile;
    }
    return slices <= MIG_COMPUTE_SLICES && sms <= machine->config.devices[gpu].sm_count &&
           same <= profile->most;
}

bool mig_fit_has_room(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                      const struct mig_profile *profile, uint32_t start)
{
    return is_free(state, start, profile->size) && leaves_compute(machine, gpu, state, profile);
}

uint32_t mig_fit_capacity(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                          const struct mig_profile *profile)
{
    struct mig_gpu draft = *state;
    uint32_t count = 0;

    for (uint32_t i = 0; i < profile->start_count; i++) {
        uint32_t id = 0;

        if (!mig_fit_has_room(machine, gpu, &draft, profile, profile->starts[i]))
            continue;
        while (draft.instances[id].live)
            id++;
        draft.instances[id] = (struct mig_gpu_instance) {
            .live = true, .profile = profile, .start = profile->starts[i]};
        count++;
    }
    return count;
}

/* The driver's own order: the smallest aligned group of slices that has a free one comes first. */
static int group_of(uint32_t start)
{
    return start >= 6 ? 0 : start >= 4 ? 1 : 2;
}

int mig_fit_start(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                  const struct mig_profile *profile)
{
    for (int group = 0; group < 3; group++)
        for (uint32_t i = 0; i < profile->start_count; i++)
            if (group_of(profile->starts[i]) == group &&
                mig_fit_has_room(machine, gpu, state, profile, profile->starts[i]))
                return (int) profile->starts[i];
    return -1;
}

/* The ids of GPU instances are a range for each size: 0 is the whole device, 1 and 2 are halves. */
int mig_fit_id(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
               const struct mig_profile *profile)
{
    uint32_t parts = mig_memory_slices(machine, gpu) / profile->size;

    for (uint32_t id = parts - 1; id <= 2 * (parts - 1) && id < MIG_GPU_INSTANCES; id++)
        if (!state->instances[id].live)
            return (int) id;
    return -1;
}

bool mig_fit_compute_is_possible(const struct mig_profile *profile, uint32_t slices)
{
    return slices == profile->slices || (slices >= 1 && slices <= 4 && slices < profile->slices &&
                                         !(slices == 3 && profile->slices == 4));
}

bool mig_fit_compute_is_free(const struct mig_gpu_instance *instance, uint32_t start,
                             uint32_t slices)
{
    for (uint32_t id = 0; id < MIG_COMPUTE_INSTANCES; id++) {
        const struct mig_compute_instance *other = &instance->computes[id];

        if (other->live && start < other->start + other->slices && other->start < start + slices)
            return false;
    }
    return start + slices <= instance->profile->slices;
}

uint32_t mig_fit_compute_capacity(const struct mig_gpu_instance *instance, uint32_t slices)
{
    uint32_t count = 0;

    for (uint32_t start = 0; start + slices <= instance->profile->slices;) {
        bool free = mig_fit_compute_is_free(instance, start, slices);

        count += free;
        start += free ? slices : 1;
    }
    return count;
}
