/* SPDX-License-Identifier: Apache-2.0 */
/* visible.c -- CUDA_VISIBLE_DEVICES, read once, by cuInit. */
#include "visible.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mig.h"

enum { NONE = -1, SEVERAL = -2 };

static const char VARIABLE[] = "CUDA_VISIBLE_DEVICES=";

const char *visible_list(void)
{
    char **environment = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);

    for (; environment && *environment; environment++)
        if (strncmp(*environment, VARIABLE, sizeof(VARIABLE) - 1) == 0)
            return *environment + sizeof(VARIABLE) - 1;
    return NULL;
}

/* Record a match of a UUID's beginning; -1 for several. */
static int match(const char *uuid, const char *text, size_t length, int device, int found)
{
    if (strncmp(uuid, text, length) != 0)
        return found;
    return found == NONE ? device : SEVERAL;
}

/* The only device whose UUID starts with these characters; -1 if there is none, or several. */
static int find_uuid(const struct machine_config *config, const struct visible_mig *mig,
                     const char *text, size_t length)
{
    int found = NONE;

    for (uint32_t i = 0; i < config->device_count; i++)
        found = match(config->devices[i].uuid, text, length, (int) i, found);
    for (uint32_t i = 0; i < mig->count; i++)
        found =
            match(config->devices[mig->units[i]].uuid, text, length, (int) mig->units[i], found);
    return found < 0 ? -1 : found;
}

/* A device in MIG mode stands for its first compute instance, if it has one. */
static int resolve(const struct machine_config *config, const struct visible_mig *mig, int device)
{
    if (device < 0 || device >= (int) config->device_count || !mig->enabled[device])
        return device;
    for (uint32_t i = 0; i < mig->count; i++)
        if (config->devices[mig->units[i]].parent == (uint32_t) device)
            return (int) mig->units[i];
    return -1;
}

/* The device that an entry of the list names, or -1. */
static int find_device(const struct machine_config *config, const struct visible_mig *mig,
                       const char *text, size_t length)
{
    char *end;
    long index;

    while (length && (*text == ' ' || *text == '\t')) {
        text++;
        length--;
    }
    while (length && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    if (length >= 4 && (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0))
        return resolve(config, mig, find_uuid(config, mig, text, length));
    if (!length || *text < '0' || *text > '9')
        return -1;
    index = strtol(text, &end, 10);
    if (end != text + length || index >= (long) config->device_count)
        return -1;
    return resolve(config, mig, (int) index);
}

/* A process uses one compute instance, or devices without MIG: the first instance hides the rest.
 */
static int hide_behind_instance(const struct machine_config *config, int *devices, int count)
{
    for (int i = 0; i < count; i++)
        if (devices[i] >= (int) config->device_count) {
            devices[0] = devices[i];
            return 1;
        }
    return count;
}

int visible_devices(const struct machine_config *config, const struct visible_mig *mig,
                    const char *list, int *devices)
{
    int count = 0;

    if (!list) {
        for (uint32_t gpu = 0; gpu < config->device_count; gpu++)
            if (!mig->enabled[gpu])
                devices[count++] = (int) gpu;
        for (uint32_t i = 0; i < mig->count && count < CONFIG_DEVICES; i++)
            devices[count++] = (int) mig->units[i];
        return hide_behind_instance(config, devices, count);
    }
    for (;;) {
        size_t length = strcspn(list, ",");
        int device = find_device(config, mig, list, length);

        if (device < 0)
            return hide_behind_instance(config, devices, count);
        for (int i = 0; i < count; i++)
            if (devices[i] == device)
                return 0;
        devices[count++] = device; /* cannot be too many, since none comes twice */
        if (!list[length])
            return hide_behind_instance(config, devices, count);
        list += length + 1;
    }
}

int visible_now(struct machine *machine, int *devices)
{
    struct visible_mig mig = {0};

    for (uint32_t gpu = 0; gpu < machine->config.device_count; gpu++) {
        const struct mig_gpu *state = mig_hold(machine, gpu);

        mig.enabled[gpu] = state->enabled;
        mig.count += mig_units(state, &mig.units[mig.count]);
        mig_release();
    }
    return visible_devices(&machine->config, &mig, visible_list(), devices);
}
