/* SPDX-License-Identifier: Apache-2.0 */
/* visible.c -- CUDA_VISIBLE_DEVICES, read once, by cuInit. */
#include "visible.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char VARIABLE[] = "CUDA_VISIBLE_DEVICES=";

const char *visible_list(void)
{
    char **environment = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);

    for (; environment && *environment; environment++)
        if (strncmp(*environment, VARIABLE, sizeof(VARIABLE) - 1) == 0)
            return *environment + sizeof(VARIABLE) - 1;
    return NULL;
}

/* The only device whose UUID starts with these characters; -1 if there is none, or several. */
static int find_uuid(const struct machine_config *config, const char *text, size_t length)
{
    int found = -1;

    for (uint32_t i = 0; i < config->device_count; i++)
        if (strncmp(config->devices[i].uuid, text, length) == 0) {
            if (found >= 0)
                return -1;
            found = (int) i;
        }
    return found;
}

/* The device that an entry of the list names, or -1. */
static int find_device(const struct machine_config *config, const char *text, size_t length)
{
    char *end;
    long index;

    while (length && (*text == ' ' || *text == '\t')) {
        text++;
        length--;
    }
    while (length && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    if (length >= 4 && strncmp(text, "GPU-", 4) == 0)
        return find_uuid(config, text, length);
    if (!length || *text < '0' || *text > '9')
        return -1;
    index = strtol(text, &end, 10);
    if (end != text + length || index >= (long) config->device_count)
        return -1;
    return (int) index;
}

int visible_devices(const struct machine_config *config, const char *list, int *devices)
{
    int count = 0;

    if (!list) {
        for (; count < (int) config->device_count; count++)
            devices[count] = count;
        return count;
    }
    for (;;) {
        size_t length = strcspn(list, ",");
        int device = find_device(config, list, length);

        if (device < 0)
            return count;
        for (int i = 0; i < count; i++)
            if (devices[i] == device)
                return 0;
        devices[count++] = device; /* cannot be too many, since none comes twice */
        if (!list[length])
            return count;
        list += length + 1;
    }
}
