/* SPDX-License-Identifier: Apache-2.0 */
/* mps.c -- checks that this process is confined by MPS; see mps.h. */
#include "shim/cuda/mps.h"

#include <stdio.h>
#include <stdlib.h>

#include "shim/driver.h"

#define PERCENTAGE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

/* The least vcore of the quota's devices under MPS; 0 if none is. */
static uint32_t least_vcore(const struct quota_limits *limits)
{
    uint32_t least = 0;

    for (unsigned i = 0; i < limits->device_count; i++) {
        const struct quota_device *device = &limits->devices[i];

        if (device->policy == POLICY_MPS && (!least || device->vcore < least))
            least = device->vcore;
    }
    return least;
}

int mps_is_confined(const struct quota_limits *limits, struct region_reason *reason)
{
    uint32_t vcore = least_vcore(limits);
    const char *text = getenv(PERCENTAGE);
    char *end;
    double percent = text ? strtod(text, &end) : 100;

    if (!vcore || (vcore >= 100 && !text))
        return 1;
    if (text && end != text && !*end && percent > 0 && percent <= vcore)
        return 1;
    snprintf(reason->text, sizeof(reason->text),
             "%s=%s: must be above 0 and at most %u, the vcore of the quota under MPS", PERCENTAGE,
             text ? text : "", (unsigned) vcore);
    return 0;
}

int mps_is_used(const struct quota_limits *limits, const int8_t *device_of, unsigned count,
                struct region_reason *reason)
{
    for (unsigned i = 0; i < count; i++) {
        int used = 0;

        if (device_of[i] < 0 || limits->devices[device_of[i]].policy != POLICY_MPS)
            continue;
        if (driver.cuDeviceGetAttribute(&used, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, (CUdevice) i) !=
                CUDA_SUCCESS ||
            !used) {
            snprintf(reason->text, sizeof(reason->text),
                     "the quota is under MPS, and the driver does not use MPS: is "
                     "CUDA_MPS_PIPE_DIRECTORY the daemon's folder?");
            return 0;
        }
    }
    return 1;
}
