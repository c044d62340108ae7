/* SPDX-License-Identifier: Apache-2.0 */
/* visible.c -- parses CUDA_VISIBLE_DEVICES and matches its entries; see visible.h. */
#include "core/visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define UUID_PREFIX "GPU-"

void visible_uuid_text(const uint8_t uuid[16], char text[VISIBLE_UUID_TEXT])
{
    char *end = text + sprintf(text, UUID_PREFIX);

    for (int i = 0; i < 16; i++)
        end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

/* The index of the only device whose UUID begins with the *length* characters; else -1. */
static int by_uuid(const char *entry, size_t length, const struct quota_limits *limits)
{
    int found = -1;

    for (unsigned i = 0; i < limits->device_count; i++) {
        char text[VISIBLE_UUID_TEXT];

        visible_uuid_text(limits->devices[i].uuid, text);
        if (strncasecmp(entry, text, length) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int) i;
    }
    return found;
}

/* Leading digits count and the rest is ignored, as in the driver. */
static int by_ordinal(const char *entry, const struct quota_limits *limits)
{
    char *end;
    long ordinal = strtol(entry, &end, 10);

    return end != entry && ordinal >= 0 && ordinal < (long) limits->device_count ? (int) ordinal
                                                                                 : -1;
}

static void append(char text[VISIBLE_TEXT], const uint8_t uuid[16])
{
    char one[VISIBLE_UUID_TEXT];

    visible_uuid_text(uuid, one);
    if (*text)
        strcat(text, ",");
    strcat(text, one);
}

void visible_resolve(const char *asked, const struct quota_limits *limits, char text[VISIBLE_TEXT])
{
    unsigned taken = 0;
    int uuids = asked && strncmp(asked, UUID_PREFIX, strlen(UUID_PREFIX)) == 0;

    *text = '\0';
    for (unsigned i = 0; !asked && i < limits->device_count; i++)
        append(text, limits->devices[i].uuid);
    while (asked && *asked) {
        size_t length = strcspn(asked, ",");
        int index = uuids ? by_uuid(asked, length, limits) : by_ordinal(asked, limits);

        if (uuids && length <= strlen(UUID_PREFIX))
            index = -1;
        if (index < 0)
            break;
        if (taken & 1u << index) {
            *text = '\0';
            break;
        }
        taken |= 1u << index;
        append(text, limits->devices[index].uuid);
        asked += length;
        asked += *asked == ',';
    }
}
