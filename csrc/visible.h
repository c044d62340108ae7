/* SPDX-License-Identifier: Apache-2.0 */
/* visible.h -- which devices of the quota the driver may see, in CUDA_VISIBLE_DEVICES' own terms.
 *
 * The driver is always given UUIDs; what the application asked for (ordinals, UUID prefixes) is
 * resolved against the quota's list. Pure: no environment, no CUDA.
 */
#ifndef PYVGPU_VISIBLE_H
#define PYVGPU_VISIBLE_H

#include "region.h"

#define VISIBLE_UUID_TEXT 41 /* "GPU-" 8-4-4-4-12 and a NUL */
#define VISIBLE_TEXT      (REGION_DEVICES * VISIBLE_UUID_TEXT + 1)

/* Write the NVML spelling of a UUID. */
void visible_uuid_text(const uint8_t uuid[16], char text[VISIBLE_UUID_TEXT]);

/* Write into *text* the list for the driver. *asked* is the application's CUDA_VISIBLE_DEVICES,
 * NULL if unset. As in the driver the list ends at the first entry that is not valid, and an entry
 * that comes twice means no device at all. */
void visible_resolve(const char *asked, const struct quota_limits *limits, char text[VISIBLE_TEXT]);

#endif
