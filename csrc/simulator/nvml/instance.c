/* SPDX-License-Identifier: Apache-2.0 */
/* instance.c -- GPU instances and compute instances: profiles, placements, creation, destruction.
 *
 * A handle is the address of a place for its ids, so it stays valid for the life of the library;
 * calls on a handle whose instance is gone return NOT_FOUND.
 */
#include "api.h"
#include "lists.h"
#include "source.h"

#include <stdio.h>
#include <unistd.h>

#include "../mig.h"
#include "../mig_fit.h"

struct nvmlGpuInstance_st {
    char place;
};
struct nvmlComputeInstance_st {
    char place;
};

static struct nvmlGpuInstance_st gpu_places[CONFIG_GPUS][MIG_GPU_INSTANCES];
static struct nvmlComputeInstance_st compute_places[CONFIG_GPUS][MIG_GPU_INSTANCES]
                                                   [MIG_COMPUTE_INSTANCES];

/* NVML's numbers of compute profiles, which are their ids, too, by the number of slices. */
static const unsigned int compute_slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {
    [NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
    [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
    [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7,
};

static unsigned int compute_profile(unsigned int slices)
{
    unsigned int profile = 0;

    while (compute_slices[profile] != slices)
        profile++;
    return profile;
}

static nvmlReturn_t result_of(enum mig_result result)
{
    static const nvmlReturn_t results[] = {
        [MIG_DONE] = NVML_SUCCESS,
        [MIG_FULL] = NVML_ERROR_INSUFFICIENT_RESOURCES,
        [MIG_IN_USE] = NVML_ERROR_IN_USE,
        [MIG_ABSENT] = NVML_ERROR_NOT_FOUND,
        [MIG_INVALID] = NVML_ERROR_INVALID_ARGUMENT,
        [MIG_BROKEN] = NVML_ERROR_OPERATING_SYSTEM,
    };
    return results[result];
}

/* --- profiles of GPU instances ---------------------------------------------------------------- */

static nvmlReturn_t find_profile(nvmlDevice_t device, unsigned int number, bool by_id,
                                 const struct mig_profile **profile)
{
    const struct device_config *config = &source_machine()->config.devices[device->index];

    if (!config->mig_profile_count)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!by_id && number >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < config->mig_profile_count; i++) {
        *profile = &config->mig_profiles[i];
        if ((by_id ? (*profile)->id : (*profile)->number) == number)
            return NVML_SUCCESS;
    }
    return by_id ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

/* The fields that all versions have; P2P between instances is not simulated. */
#define FILL_PROFILE(info, found)                        \
    do {                                                 \
        (info)->id = (found)->id;                        \
        (info)->sliceCount = (found)->slices;            \
        (info)->instanceCount = (found)->most;           \
        (info)->multiprocessorCount = (found)->sms;      \
        (info)->copyEngineCount = (found)->copy_engines; \
        (info)->decoderCount = (found)->decoders;        \
        (info)->encoderCount = 0;                        \
        (info)->jpegCount = (found)->jpegs;              \
        (info)->ofaCount = (found)->ofas;                \
        (info)->memorySizeMB = (found)->memory_mib;      \
    } while (0)

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    const struct mig_profile *profile = NULL;

    ENTER_DEVICE(device);
    REQUIRE(info);
    nvmlReturn_t result = find_profile(device, number, false, &profile);
    if (result != NVML_SUCCESS)
        return result;
    FILL_PROFILE(info, profile);
    info->isP2pSupported = 0;
    return NVML_SUCCESS;
}

/* The name is "MIG 1g.10gb". The third version has other fields behind the first. */
static nvmlReturn_t give_profile(const struct mig_profile *profile,
                                 nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (info->version == nvmlGpuInstanceProfileInfo_v3) {
        nvmlGpuInstanceProfileInfo_v3_t *third = (nvmlGpuInstanceProfileInfo_v3_t *) info;

        FILL_PROFILE(third, profile);
        snprintf(third->name, sizeof(third->name), "MIG %s", profile->name);
        third->capabilities = 0;
        return NVML_SUCCESS;
    }
    REQUIRE_VERSION(info, nvmlGpuInstanceProfileInfo_v2);
    FILL_PROFILE(info, profile);
    info->isP2pSupported = 0;
    snprintf(info->name, sizeof(info->name), "MIG %s", profile->name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct mig_profile *profile = NULL;

    ENTER_DEVICE(device);
    REQUIRE(info);
    nvmlReturn_t result = find_profile(device, number, false, &profile);
    return result == NVML_SUCCESS ? give_profile(profile, info) : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct mig_profile *profile = NULL;

    ENTER_DEVICE(device);
    REQUIRE(info);
    nvmlReturn_t result = find_profile(device, id, true, &profile);
    return result == NVML_SUCCESS ? give_profile(profile, info) : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count)
{
    const struct mig_profile *profile = NULL;

    ENTER_DEVICE(device);
    REQUIRE(count);
    nvmlReturn_t result = find_profile(device, id, true, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (placements && *count < profile->start_count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = profile->start_count;
    for (uint32_t i = 0; placements && i < profile->start_count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t) {profile->starts[i], profile->size};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t *placements,
                                                        unsigned int *count)
{
    ENTER_DEVICE(device);
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

/* With MIG off, it is what there would be after switching it on. */
nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                       unsigned int *count)
{
    const struct mig_profile *profile = NULL;
    const struct mig_gpu *state;

    ENTER_DEVICE(device);
    REQUIRE(count);
    nvmlReturn_t result = find_profile(device, id, true, &profile);
    if (result != NVML_SUCCESS)
        return result;
    state = mig_hold(source_machine(), device->index);
    *count = mig_fit_capacity(source_machine(), device->index, state, profile);
    mig_release();
    return NVML_SUCCESS;
}

/* --- GPU instances ---------------------------------------------------------------------------- */

static nvmlReturn_t create(nvmlDevice_t device, unsigned int id, int start,
                           nvmlGpuInstance_t *instance)
{
    const struct mig_profile *profile = NULL;
    uint32_t made = 0;

    REQUIRE(instance);
    nvmlReturn_t result = find_profile(device, id, true, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (!source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    result = result_of(mig_create(source_machine(), device->index, profile, start, &made));
    if (result == NVML_SUCCESS)
        *instance = &gpu_places[device->index][made];
    return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                         nvmlGpuInstance_t *instance)
{
    ENTER_DEVICE(device);
    return create(device, id, -1, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance)
{
    ENTER_DEVICE(device);
    REQUIRE(placement && placement->start < CONFIG_STARTS);
    return create(device, id, (int) placement->start, instance);
}

/* The GPU and the id behind a handle. */
static nvmlReturn_t open_gpu_instance(nvmlGpuInstance_t instance, uint32_t *gpu, uint32_t *id)
{
    uintptr_t offset = (uintptr_t) instance - (uintptr_t) gpu_places;

    if (offset >= sizeof(gpu_places))
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = (uint32_t) (offset / MIG_GPU_INSTANCES);
    *id = (uint32_t) (offset % MIG_GPU_INSTANCES);
    return *gpu < nvml_device_count() ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* A copy of the instance; NOT_FOUND if it is gone. */
static nvmlReturn_t read_gpu_instance(nvmlGpuInstance_t instance, uint32_t *gpu, uint32_t *id,
                                      struct mig_gpu_instance *copy)
{
    nvmlReturn_t result = open_gpu_instance(instance, gpu, id);

    if (result != NVML_SUCCESS)
        return result;
    *copy = mig_hold(source_machine(), *gpu)->instances[*id];
    mig_release();
    return copy->live ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    uint32_t gpu = 0, id = 0;

    ENTER();
    nvmlReturn_t result = open_gpu_instance(instance, &gpu, &id);
    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    return result_of(mig_destroy(source_machine(), gpu, id));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                       nvmlGpuInstance_t *instances, unsigned int *count)
{
    const struct mig_profile *profile = NULL;

    ENTER_DEVICE(device);
    REQUIRE(instances && count);
    nvmlReturn_t result = find_profile(device, profile_id, true, &profile);
    if (result != NVML_SUCCESS)
        return result;
    if (!source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct mig_gpu *state = mig_hold(source_machine(), device->index);
    *count = 0;
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        if (state->instances[id].live && state->instances[id].profile == profile)
            instances[(*count)++] = &gpu_places[device->index][id];
    mig_release();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *instance)
{
    ENTER_DEVICE(device);
    REQUIRE(instance);
    if (!source_mig(device->index))
        return NVML_ERROR_NOT_SUPPORTED;
    if (id >= MIG_GPU_INSTANCES)
        return NVML_ERROR_NOT_FOUND;
    bool live = mig_hold(source_machine(), device->index)->instances[id].live;
    mig_release();
    *instance = live ? &gpu_places[device->index][id] : NULL;
    return live ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0;

    ENTER();
    REQUIRE(info);
    nvmlReturn_t result = read_gpu_instance(instance, &gpu, &id, &found);
    if (result != NVML_SUCCESS)
        return result;
    *info = (nvmlGpuInstanceInfo_t) {
        .device = nvml_device(gpu),
        .id = id,
        .profileId = found.profile->id,
        .placement = {.start = found.start, .size = found.profile->size},
    };
    return NVML_SUCCESS;
}

/* --- compute instances ------------------------------------------------------------------------ */

/* Slices of a compute profile of the instance, by NVML's number. */
static nvmlReturn_t find_slices(const struct mig_gpu_instance *instance, unsigned int profile,
                                uint32_t *slices)
{
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *slices = compute_slices[profile];
    return *slices && mig_fit_compute_is_possible(instance->profile, *slices)
               ? NVML_SUCCESS
               : NVML_ERROR_NOT_SUPPORTED;
}

#define FILL_COMPUTE(info, instance, number, slices)                                  \
    do {                                                                              \
        (info)->id = (number);                                                        \
        (info)->sliceCount = (slices);                                                \
        (info)->instanceCount = (instance)->profile->slices / (slices);               \
        (info)->multiprocessorCount = mig_compute_sms((instance)->profile, (slices)); \
        (info)->sharedCopyEngineCount = (instance)->profile->copy_engines;            \
        (info)->sharedDecoderCount = (instance)->profile->decoders;                   \
        (info)->sharedEncoderCount = 0;                                               \
        (info)->sharedJpegCount = (instance)->profile->jpegs;                         \
        (info)->sharedOfaCount = (instance)->profile->ofas;                           \
    } while (0)

/* Read the instance and the profile's slices, for calls on compute profiles. */
static nvmlReturn_t read_profile(nvmlGpuInstance_t instance, unsigned int number, uint32_t *gpu,
                                 uint32_t *id, struct mig_gpu_instance *found, uint32_t *slices)
{
    nvmlReturn_t result = read_gpu_instance(instance, gpu, id, found);

    return result == NVML_SUCCESS ? find_slices(found, number, slices) : result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance,
                                                          unsigned int number, unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0;

    ENTER();
    REQUIRE(info && engines < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result == NVML_SUCCESS)
        FILL_COMPUTE(info, &found, number, slices);
    return result;
}

nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int number,
                                              unsigned int engines,
                                              nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0;
    char name[64];

    ENTER();
    REQUIRE(info && engines < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result != NVML_SUCCESS)
        return result;
    mig_compute_name(&found, slices, name, sizeof(name));
    if (info->version == nvmlComputeInstanceProfileInfo_v3) {
        nvmlComputeInstanceProfileInfo_v3_t *third = (nvmlComputeInstanceProfileInfo_v3_t *) info;

        snprintf(third->name, sizeof(third->name), "MIG %s", name);
        third->capabilities = 0;
    } else {
        REQUIRE_VERSION(info, nvmlComputeInstanceProfileInfo_v2);
        snprintf(info->name, sizeof(info->name), "MIG %s", name);
    }
    FILL_COMPUTE(info, &found, number, slices); /* all before the name is alike */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance,
                                                                unsigned int number,
                                                                unsigned int *count)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0;

    ENTER();
    REQUIRE(count);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result == NVML_SUCCESS)
        *count = mig_fit_compute_capacity(&found, slices);
    return result;
}

nvmlReturn_t
nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int number,
                                                    nvmlComputeInstancePlacement_t *placements,
                                                    unsigned int *count)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0;

    ENTER();
    REQUIRE(count);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int needed = found.profile->slices - slices + 1;
    if (placements && *count < needed)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = needed;
    for (unsigned int start = 0; placements && start < needed; start++)
        placements[start] = (nvmlComputeInstancePlacement_t) {start, slices};
    return NVML_SUCCESS;
}

static nvmlReturn_t create_compute(nvmlGpuInstance_t instance, unsigned int number, int start,
                                   nvmlComputeInstance_t *compute)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0, made = 0;

    REQUIRE(compute);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    result = result_of(mig_create_compute(source_machine(), gpu, id, slices, start, &made));
    if (result == NVML_SUCCESS)
        *compute = &compute_places[gpu][id][made];
    return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int number,
                                                  nvmlComputeInstance_t *compute)
{
    ENTER();
    return create_compute(instance, number, -1, compute);
}

nvmlReturn_t
nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int number,
                                                  const nvmlComputeInstancePlacement_t *placement,
                                                  nvmlComputeInstance_t *compute)
{
    ENTER();
    REQUIRE(placement && placement->start < MIG_COMPUTE_SLICES);
    return create_compute(instance, number, (int) placement->start, compute);
}

struct compute_ids {
    uint32_t gpu, instance, compute;
};

static nvmlReturn_t open_compute_instance(nvmlComputeInstance_t compute, struct compute_ids *ids)
{
    uintptr_t offset = (uintptr_t) compute - (uintptr_t) compute_places;

    if (offset >= sizeof(compute_places))
        return NVML_ERROR_INVALID_ARGUMENT;
    ids->compute = (uint32_t) (offset % MIG_COMPUTE_INSTANCES);
    ids->instance = (uint32_t) (offset / MIG_COMPUTE_INSTANCES % MIG_GPU_INSTANCES);
    ids->gpu = (uint32_t) (offset / MIG_COMPUTE_INSTANCES / MIG_GPU_INSTANCES);
    return ids->gpu < nvml_device_count() ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    struct compute_ids ids = {0};

    ENTER();
    nvmlReturn_t result = open_compute_instance(compute, &ids);
    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    return result_of(mig_destroy_compute(source_machine(), ids.gpu, ids.instance, ids.compute));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int number,
                                                nvmlComputeInstance_t *computes,
                                                unsigned int *count)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0, slices = 0;

    ENTER();
    REQUIRE(computes && count);
    nvmlReturn_t result = read_profile(instance, number, &gpu, &id, &found, &slices);
    if (result != NVML_SUCCESS)
        return result;
    *count = 0;
    for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++)
        if (found.computes[compute].live && found.computes[compute].slices == slices)
            computes[(*count)++] = &compute_places[gpu][id][compute];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int number,
                                                   nvmlComputeInstance_t *compute)
{
    struct mig_gpu_instance found;
    uint32_t gpu = 0, id = 0;

    ENTER();
    REQUIRE(compute);
    nvmlReturn_t result = read_gpu_instance(instance, &gpu, &id, &found);
    if (result != NVML_SUCCESS)
        return result;
    if (number >= MIG_COMPUTE_INSTANCES || !found.computes[number].live)
        return NVML_ERROR_NOT_FOUND;
    *compute = &compute_places[gpu][id][number];
    return NVML_SUCCESS;
}

static nvmlReturn_t give_compute(nvmlComputeInstance_t compute, bool with_handle,
                                 nvmlComputeInstanceInfo_t *info)
{
    struct compute_ids ids = {0};

    REQUIRE(info);
    nvmlReturn_t result = open_compute_instance(compute, &ids);
    if (result != NVML_SUCCESS)
        return result;
    const struct mig_compute_instance found =
        mig_hold(source_machine(), ids.gpu)->instances[ids.instance].computes[ids.compute];
    mig_release();
    if (!found.live)
        return NVML_ERROR_NOT_FOUND;
    nvml_refresh();
    *info = (nvmlComputeInstanceInfo_t) {
        .device = nvml_device(with_handle ? found.unit : ids.gpu),
        .gpuInstance = &gpu_places[ids.gpu][ids.instance],
        .id = ids.compute,
        .profileId = compute_profile(found.slices),
        .placement = {.start = found.start, .size = found.slices},
    };
    return NVML_SUCCESS;
}

/* The first version returns the GPU as its device, the second the MIG device. */
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute,
                                        nvmlComputeInstanceInfo_t *info)
{
    ENTER();
    return give_compute(compute, false, info);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute,
                                           nvmlComputeInstanceInfo_t *info)
{
    ENTER();
    return give_compute(compute, true, info);
}
