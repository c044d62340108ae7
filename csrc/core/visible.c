/* SPDX-License-Identifier: Apache-2.0 */
/* visible.c -- parses CUDA_VISIBLE_DEVICES and matches its entries; see visible.h. */
#include "core/visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PREFIX_LENGTH = 4 };

void visible_uuid_text(const uint8_t uuid[16], int is_mig, char text[VISIBLE_UUID_TEXT])
{
    char *end = text + sprintf(text, is_mig ? "MIG-" : "GPU-");

    for (int i = 0; i < 16; i++)
        end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

void visible_device_text(const struct quota_limits *limits, unsigned index,
                         char text[VISIBLE_UUID_TEXT])
{
    visible_uuid_text(limits->devices[index].uuid, limits->flags >> QUOTA_MIG_SHIFT >> index & 1,
                      text);
}

/* The index of the device with a UUID that begins with the first *length* characters of *entry*; -1
 * if none or several have one. */
static int by_uuid(const char *entry, size_t length, const struct quota_limits *limits)
{
    int found = -1;

    for (unsigned i = 0; i < limits->device_count; i++) {
        char text[VISIBLE_UUID_TEXT];

        visible_device_text(limits, i, text);
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

static void append(char text[VISIBLE_TEXT], const struct quota_limits *limits, unsigned index)
{
    char one[VISIBLE_UUID_TEXT];

    visible_device_text(limits, index, one);
    if (*text)
        strcat(text, ",");
    strcat(text, one);
}

void visible_resolve(const char *asked, const struct quota_limits *limits, char text[VISIBLE_TEXT])
{
    unsigned taken = 0; /* bits of the devices in *text* */
    int uuids = asked && (strncmp(asked, "GPU-", PREFIX_LENGTH) == 0 ||
                          strncmp(asked, "MIG-", PREFIX_LENGTH) == 0);

    *text = '\0';
    for (unsigned i = 0; !asked && i < limits->device_count; i++)
        append(text, limits, i);
    while (asked && *asked) {
        size_t length = strcspn(asked, ",");
        int index = uuids ? by_uuid(asked, length, limits) : by_ordinal(asked, limits);

        if (uuids && length <= PREFIX_LENGTH) /* "GPU-" alone would match every device */
            index = -1;
        if (index < 0)
            break;
        if (taken & 1u << index) {
            *text = '\0';
            break;
        }
        taken |= 1u << index;
        append(text, limits, (unsigned) index);
        asked += length;
        asked += *asked == ',';
    }
}
