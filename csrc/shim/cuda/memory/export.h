/* SPDX-License-Identifier: Apache-2.0 */
/* export.h -- physical memory imported by a descriptor or a fabric handle.
 *
 * An export of this container is recognized at its import, and its owner pays. The size of memory
 * from elsewhere is unknown until it is mapped; then this process pays for it.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_EXPORT_H
#define PYVGPU_SHIM_CUDA_MEMORY_EXPORT_H

#include "shim/cuda/memory/physical.h"

/* Charge *bytes* for *physical*, which comes from elsewhere and is being mapped. If they do not
 * fit, nothing changes. */
CUresult export_settle(struct physical *physical, uint64_t bytes);

#endif
