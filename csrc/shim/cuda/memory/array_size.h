/* SPDX-License-Identifier: Apache-2.0 */
/* array_size.h -- bounds of an array's size, where the driver does not report it.
 *
 * An array is stored in blocks rather than in rows, and only the driver knows which blocks it
 * chose. So there are two bounds: the most and the least bytes that it takes. Calls no driver.
 */
#ifndef PYVGPU_SHIM_CUDA_MEMORY_ARRAY_SIZE_H
#define PYVGPU_SHIM_CUDA_MEMORY_ARRAY_SIZE_H

#include "shim/hooks.h"

/* UINT64_MAX on overflow. *levels* is 1 for an array without a mipmap. */
uint64_t array_size_at_most(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

uint64_t array_size_at_least(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

#endif
