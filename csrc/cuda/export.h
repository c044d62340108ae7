/* SPDX-License-Identifier: Apache-2.0 */
/* export.h -- physical memory that came in by a descriptor or a fabric handle.
 *
 * An export of this container is known when it comes in, and its owner pays. Of what comes from
 * elsewhere nobody says how much it is before it is mapped; then this process pays for it.
 */
#ifndef PYVGPU_CUDA_EXPORT_H
#define PYVGPU_CUDA_EXPORT_H

#include "cuda/physical.h"

/* *physical*, which comes from elsewhere, is mapped with *bytes*: pay for it. If it does not fit,
 * nothing has changed. */
CUresult export_settle(struct physical *physical, uint64_t bytes);

#endif
