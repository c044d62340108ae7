/* SPDX-License-Identifier: Apache-2.0 */
/* visible.h -- resolves CUDA_VISIBLE_DEVICES against the quota's list of devices.
 *
 * The driver always gets UUIDs; the application's list may have ordinals or UUID prefixes. Pure: no
 * environment, no CUDA.
 */
#ifndef PYVGPU_CORE_VISIBLE_H
#define PYVGPU_CORE_VISIBLE_H

#include "core/region.h"

#define VISIBLE_UUID_TEXT 41 /* "GPU-" or "MIG-", 8-4-4-4-12 and a NUL */
#define VISIBLE_TEXT      (REGION_DEVICES * VISIBLE_UUID_TEXT + 1)

/* Write the NVML spelling of a UUID, that of a device or of a MIG device. */
void visible_uuid_text(const uint8_t uuid[16], int is_mig, char text[VISIBLE_UUID_TEXT]);

/* The same of a device of the quota. */
void visible_device_text(const struct quota_limits *limits, unsigned index,
                         char text[VISIBLE_UUID_TEXT]);

/* Write the list for the driver into *text*. *asked* is the application's CUDA_VISIBLE_DEVICES,
 * NULL if unset. As in the driver, the list ends at the first invalid entry, and a duplicate entry
 * means no device at all. */
void visible_resolve(const char *asked, const struct quota_limits *limits, char text[VISIBLE_TEXT]);

#endif
