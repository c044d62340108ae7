/* SPDX-License-Identifier: Apache-2.0 */
/* mig.c -- reads and changes the instances (where one fits: mig_fit.c); see mig.h. */
#include "mig.h"
#include "mig_fit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mig_gpu gpus[CONFIG_GPUS];
static struct stat last;
static bool is_read;

/* --- reading ------------------------------------------------------------------------------- */

static const struct mig_profile *find_profile(const struct machine *machine, uint32_t gpu,
                                              const char *name)
{
    const struct device_config *config = &machine->config.devices[gpu];

    for (uint32_t i = 0; i < config->mig_profile_count; i++)
        if (!strcmp(config->mig_profiles[i].name, name))
            return &config->mig_profiles[i];
    return NULL;
}

uint32_t mig_memory_slices(const struct machine *machine, uint32_t gpu)
{
    const struct device_config *config = &machine->config.devices[gpu];
    uint32_t slices = 1;

    for (uint32_t i = 0; i < config->mig_profile_count; i++)
        if (config->mig_profiles[i].size > slices)
            slices = config->mig_profiles[i].size;
    return slices;
}

uint32_t mig_compute_sms(const struct mig_profile *profile, uint32_t slices)
{
    return profile->sms * slices / profile->slices / 2 * 2;
}

void mig_compute_name(const struct mig_gpu_instance *instance, uint32_t slices, char *text,
                      size_t size)
{
    if (slices == instance->profile->slices)
        snprintf(text, size, "%s", instance->profile->name);
    else
        snprintf(text, size, "%" PRIu32 "c.%s", slices, instance->profile->name);
}

uint32_t mig_units(const struct mig_gpu *gpu, uint32_t *units)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++)
            if (gpu->instances[id].computes[compute].live)
                units[count++] = gpu->instances[id].computes[compute].unit;
    return count;
}

static bool is_unit(const struct machine *machine, uint32_t unit)
{
    return unit >= machine->config.device_count && unit < machine->config.unit_count;
}

static void read_line(const struct machine *machine, const char *line)
{
    char text[CONFIG_TEXT], uuid[MIG_UUID];
    uint32_t gpu, id, compute, slices, start, unit;
    const struct mig_profile *profile;

    if (sscanf(line, "gpu %" SCNu32, &gpu) == 1 && gpu < machine->config.device_count) {
        gpus[gpu].enabled = mig_is_possible(machine, gpu);
    } else if (sscanf(line, "gi %" SCNu32 " %" SCNu32 " %127s %" SCNu32 " %" SCNu32, &gpu, &id,
                      text, &start, &unit) == 5) {
        if (gpu >= machine->config.device_count || id >= MIG_GPU_INSTANCES ||
            !is_unit(machine, unit) || !(profile = find_profile(machine, gpu, text)))
            return;
        gpus[gpu].instances[id] = (struct mig_gpu_instance) {
            .live = true, .profile = profile, .start = start, .unit = unit};
    } else if (sscanf(line,
                      "ci %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32
                      " %47s",
                      &gpu, &id, &compute, &slices, &start, &unit, uuid) == 7) {
        if (gpu >= machine->config.device_count || id >= MIG_GPU_INSTANCES ||
            compute >= MIG_COMPUTE_INSTANCES || !is_unit(machine, unit) ||
            !gpus[gpu].instances[id].live)
            return;
        struct mig_compute_instance *made = &gpus[gpu].instances[id].computes[compute];
        *made = (struct mig_compute_instance) {
            .live = true, .slices = slices, .start = start, .unit = unit};
        memcpy(made->uuid, uuid, sizeof(made->uuid));
    }
}

/* Describe the instance as a device: its part of its GPU. */
static void describe_unit(struct machine *machine, uint32_t gpu,
                          const struct mig_gpu_instance *instance,
                          const struct mig_compute_instance *compute)
{
    struct device_config *unit = &machine->config.devices[compute->unit];
    const struct device_config *parent = &machine->config.devices[gpu];
    const struct mig_profile *profile = instance->profile;
    uint32_t all = mig_memory_slices(machine, gpu);
    char name[CONFIG_TEXT];
    char full[CONFIG_TEXT];

    if (!strcmp(unit->uuid, compute->uuid))
        return;
    *unit = *parent;
    unit->parent = gpu;
    unit->account = instance->unit;
    unit->mig_profile_count = 0;
    unit->nvlinks = 0;
    unit->sm_count = mig_compute_sms(profile, compute->slices);
    unit->memory_bytes = (uint64_t) profile->memory_mib << 20;
    unit->reserved_bytes = 0;
    unit->memory_bandwidth = parent->memory_bandwidth * profile->size / all;
    unit->l2_bytes = parent->l2_bytes * profile->size / all;
    mig_compute_name(instance, compute->slices, name, sizeof(name));
    snprintf(full, sizeof(full), "%.80s MIG %.40s", parent->name, name);
    memcpy(unit->name, full, sizeof(full));
    snprintf(unit->uuid, sizeof(unit->uuid), "%s", compute->uuid);
    /* The account of the GPU instance needs its size, too. */
    machine->config.devices[instance->unit].memory_bytes = unit->memory_bytes;
    machine->config.devices[instance->unit].account = instance->unit;
    machine_lock_device(machine, compute->unit);
    machine->state->devices[compute->unit].model.units = unit->sm_count;
    machine_unlock_device(machine, compute->unit);
}

static void describe_units(struct machine *machine)
{
    for (uint32_t gpu = 0; gpu < machine->config.device_count; gpu++)
        for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
            for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++)
                if (gpus[gpu].instances[id].computes[compute].live)
                    describe_unit(machine, gpu, &gpus[gpu].instances[id],
                                  &gpus[gpu].instances[id].computes[compute]);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Lock held. */
static void read_file(struct machine *machine)
{
    char path[MACHINE_PATH + 32], line[256];
    struct stat now = {0};
    FILE *file;

    if (machine->config.unit_count == machine->config.device_count)
        return;
    snprintf(path, sizeof(path), "%s/mig", machine->folder);
    if (stat(path, &now))
        memset(&now, 0, sizeof(now));
    if (is_read && is_same(&now, &last))
        return;
    memset(gpus, 0, sizeof(gpus));
    file = fopen(path, "re");
    if (file && fstat(fileno(file), &now) == 0)
        while (fgets(line, sizeof(line), file))
            read_line(machine, line);
    if (file)
        fclose(file);
    last = now;
    is_read = true;
    describe_units(machine);
}

const struct mig_gpu *mig_hold(struct machine *machine, uint32_t gpu)
{
    pthread_mutex_lock(&lock);
    read_file(machine);
    return &gpus[gpu];
}

void mig_release(void)
{
    pthread_mutex_unlock(&lock);
}

void mig_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void mig_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* --- changes ------------------------------------------------------------------------------- */

/* Exclude changes by other processes, and other threads; the state is then the newest. -1: the lock
 * file cannot be opened. */
static int begin_change(struct machine *machine)
{
    char path[MACHINE_PATH + 32];
    int fd;

    snprintf(path, sizeof(path), "%s/mig.lock", machine->folder);
    fd = machine_open_file(path, O_RDWR);
    if (fd < 0)
        return -1;
    while (flock(fd, LOCK_EX) && errno == EINTR)
        continue;
    pthread_mutex_lock(&lock);
    read_file(machine);
    return fd;
}

static enum mig_result end_change(int fd, enum mig_result result)
{
    pthread_mutex_unlock(&lock);
    close(fd);
    return result;
}

static void write_gpu(FILE *file, uint32_t gpu)
{
    if (gpus[gpu].enabled)
        fprintf(file, "gpu %" PRIu32 "\n", gpu);
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++) {
        const struct mig_gpu_instance *instance = &gpus[gpu].instances[id];

        if (!instance->live)
            continue;
        fprintf(file, "gi %" PRIu32 " %" PRIu32 " %s %" PRIu32 " %" PRIu32 "\n", gpu, id,
                instance->profile->name, instance->start, instance->unit);
        for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++) {
            const struct mig_compute_instance *made = &instance->computes[compute];

            if (made->live)
                fprintf(file,
                        "ci %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32
                        " %s\n",
                        gpu, id, compute, made->slices, made->start, made->unit, made->uuid);
        }
    }
}

/* Replace the file by what gpus[] holds, or forget what it holds. */
static enum mig_result write_file(struct machine *machine)
{
    char path[MACHINE_PATH + 32], draft[MACHINE_PATH + 32];
    int fd;
    FILE *file;
    bool failed;

    snprintf(path, sizeof(path), "%s/mig", machine->folder);
    snprintf(draft, sizeof(draft), "%s/.mig.new", machine->folder);
    is_read = false; /* to be read again, whatever happens */
    unlink(draft);
    fd = machine_open_file(draft, O_WRONLY);
    file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        if (fd >= 0)
            close(fd);
        return MIG_BROKEN;
    }
    for (uint32_t gpu = 0; gpu < machine->config.device_count; gpu++)
        write_gpu(file, gpu);
    failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    return failed || rename(draft, path) ? MIG_BROKEN : MIG_DONE;
}

static bool unit_has_processes(struct machine *machine, uint32_t unit)
{
    uint32_t limit = atomic_load_explicit(&machine->state->slot_limit, memory_order_acquire);

    for (uint32_t slot = 0; slot < limit; slot++)
        if (machine_slot_is_live(machine, slot) &&
            atomic_load(&machine->state->uses[unit][slot].contexts))
            return true;
    return false;
}

static bool unit_is_taken(uint32_t unit)
{
    for (uint32_t gpu = 0; gpu < CONFIG_GPUS; gpu++)
        for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++) {
            const struct mig_gpu_instance *instance = &gpus[gpu].instances[id];

            if (instance->live && instance->unit == unit)
                return true;
            for (uint32_t compute = 0; instance->live && compute < MIG_COMPUTE_INSTANCES; compute++)
                if (instance->computes[compute].live && instance->computes[compute].unit == unit)
                    return true;
        }
    return false;
}

static int free_unit(const struct machine *machine)
{
    for (uint32_t unit = machine->config.device_count; unit < machine->config.unit_count; unit++)
        if (!unit_is_taken(unit))
            return (int) unit;
    return -1;
}

/* A UUID of version 5; never the same for two instances. */
static void draw_uuid(char uuid[MIG_UUID])
{
    unsigned char b[16] = {0};

    if (syscall(SYS_getrandom, b, sizeof(b), 0) != (long) sizeof(b)) /* no function in glibc 2.17 */
        memcpy(b, &(uint64_t) {(uint64_t) getpid()}, sizeof(uint64_t));
    b[6] = (unsigned char) (0x50 | (b[6] & 0x0f));
    b[8] = (unsigned char) (0x80 | (b[8] & 0x3f));
    snprintf(uuid, MIG_UUID,
             "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

enum mig_result mig_set_mode(struct machine *machine, uint32_t gpu, bool enabled)
{
    enum mig_result result = MIG_DONE;
    int fd;

    machine_reap(machine, true); /* before the lock, which comes after state->lock */
    fd = begin_change(machine);

    if (fd < 0)
        return MIG_BROKEN;
    if (gpus[gpu].enabled == enabled)
        return end_change(fd, MIG_DONE);
    if (unit_has_processes(machine, gpu))
        result = MIG_IN_USE;
    for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
        if (gpus[gpu].instances[id].live)
            result = MIG_IN_USE;
    if (result == MIG_DONE) {
        gpus[gpu].enabled = enabled;
        result = write_file(machine);
    }
    return end_change(fd, result);
}

static enum mig_result create(struct machine *machine, uint32_t gpu,
                              const struct mig_profile *profile, int start, uint32_t *id)
{
    struct mig_gpu *state = &gpus[gpu];
    int place = start < 0 ? mig_fit_start(machine, gpu, state, profile) : start;
    int free_id = mig_fit_id(machine, gpu, state, profile), unit = free_unit(machine);
    bool valid = start < 0;

    if (!state->enabled)
        return MIG_ABSENT;
    for (uint32_t i = 0; i < profile->start_count; i++)
        valid |= (int) profile->starts[i] == start;
    if (!valid)
        return MIG_INVALID;
    if (place < 0 || free_id < 0 || unit < 0 ||
        !mig_fit_has_room(machine, gpu, state, profile, (uint32_t) place))
        return MIG_FULL;
    *id = (uint32_t) free_id;
    state->instances[free_id] = (struct mig_gpu_instance) {
        .live = true, .profile = profile, .start = (uint32_t) place, .unit = (uint32_t) unit};
    return write_file(machine);
}

enum mig_result mig_create(struct machine *machine, uint32_t gpu, const struct mig_profile *profile,
                           int start, uint32_t *id)
{
    int fd = begin_change(machine);

    return fd < 0 ? MIG_BROKEN : end_change(fd, create(machine, gpu, profile, start, id));
}

static enum mig_result destroy(struct machine *machine, struct mig_gpu_instance *instance)
{
    if (!instance->live)
        return MIG_ABSENT;
    for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++)
        if (instance->computes[compute].live)
            return MIG_IN_USE;
    instance->live = false;
    return write_file(machine);
}

enum mig_result mig_destroy(struct machine *machine, uint32_t gpu, uint32_t id)
{
    int fd = begin_change(machine);

    return fd < 0 ? MIG_BROKEN : end_change(fd, destroy(machine, &gpus[gpu].instances[id]));
}

static enum mig_result create_compute(struct machine *machine, struct mig_gpu_instance *instance,
                                      uint32_t slices, int start, uint32_t *compute)
{
    uint32_t id = 0, place = start < 0 ? 0 : (uint32_t) start;
    int unit;

    if (!instance->live)
        return MIG_ABSENT;
    if (!mig_fit_compute_is_possible(instance->profile, slices))
        return MIG_INVALID;
    while (start < 0 && place < instance->profile->slices &&
           !mig_fit_compute_is_free(instance, place, slices))
        place++;
    if (!mig_fit_compute_is_free(instance, place, slices))
        return MIG_FULL;
    while (instance->computes[id].live)
        id++; /* each takes a slice, so one is free */
    unit = slices == instance->profile->slices ? (int) instance->unit : free_unit(machine);
    if (unit < 0)
        return MIG_FULL;
    instance->computes[id] = (struct mig_compute_instance) {
        .live = true, .slices = slices, .start = place, .unit = (uint32_t) unit};
    draw_uuid(instance->computes[id].uuid);
    *compute = id;
    return write_file(machine);
}

enum mig_result mig_create_compute(struct machine *machine, uint32_t gpu, uint32_t id,
                                   uint32_t slices, int start, uint32_t *compute)
{
    int fd = begin_change(machine);

    return fd < 0 ? MIG_BROKEN
                  : end_change(fd, create_compute(machine, &gpus[gpu].instances[id], slices, start,
                                                  compute));
}

static enum mig_result destroy_compute(struct machine *machine,
                                       struct mig_compute_instance *compute)
{
    if (!compute->live)
        return MIG_ABSENT;
    if (unit_has_processes(machine, compute->unit))
        return MIG_IN_USE;
    compute->live = false;
    return write_file(machine);
}

enum mig_result mig_destroy_compute(struct machine *machine, uint32_t gpu, uint32_t id,
                                    uint32_t compute)
{
    int fd;

    machine_reap(machine, true); /* as in mig_set_mode */
    fd = begin_change(machine);

    return fd < 0 ? MIG_BROKEN
                  : end_change(
                        fd, destroy_compute(machine, &gpus[gpu].instances[id].computes[compute]));
}

bool mig_join(struct machine *machine, uint32_t unit, const char *uuid, uint32_t slot)
{
    bool found = false;
    int fd = begin_change(machine);

    if (fd < 0)
        return false;
    for (uint32_t gpu = 0; gpu < machine->config.device_count; gpu++)
        for (uint32_t id = 0; id < MIG_GPU_INSTANCES; id++)
            for (uint32_t compute = 0; compute < MIG_COMPUTE_INSTANCES; compute++) {
                const struct mig_compute_instance *made =
                    &gpus[gpu].instances[id].computes[compute];

                found |= made->live && made->unit == unit && !strcmp(made->uuid, uuid);
            }
    if (found)
        atomic_fetch_add(&machine->state->uses[unit][slot].contexts, 1);
    end_change(fd, MIG_DONE);
    return found;
}
