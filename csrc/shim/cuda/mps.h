/* SPDX-License-Identifier: Apache-2.0 */
/* mps.h -- whether this process is the client of MPS that its quota says.
 *
 * Under MPS vcore is a percentage of the SMs, which the driver reads from the environment when it
 * initialises. Without a daemon the driver silently goes on without MPS, so it is asked afterwards.
 */
#ifndef PYVGPU_SHIM_CUDA_MPS_H
#define PYVGPU_SHIM_CUDA_MPS_H

#include "core/region.h"

/* Before the driver initialises: 1 if the environment confines this process to its vcore, or the
 * quota is not under MPS; else 0, with a sentence. */
int mps_is_confined(const struct quota_limits *limits, struct region_reason *reason);

/* After it has: 1 if it uses MPS on all devices of the quota that say so; else 0, with a sentence.
 */
int mps_is_used(const struct quota_limits *limits, const int8_t *device_of, unsigned count,
                struct region_reason *reason);

#endif
