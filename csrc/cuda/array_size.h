/* SPDX-License-Identifier: Apache-2.0 */
/* array_size.h -- what an array takes, where the driver does not say it.
 *
 * An array lies in device memory in blocks rather than in rows, and the driver alone knows which
 * blocks it chose. So there are two answers: the bytes that it takes at most, and bytes that it
 * takes at least. Asks no driver.
 */
#ifndef PYVGPU_CUDA_ARRAY_SIZE_H
#define PYVGPU_CUDA_ARRAY_SIZE_H

#include "hooks.h"

/* UINT64_MAX if it is more than can be counted. *levels* is 1 for what has no mipmap. */
uint64_t array_size_at_most(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

uint64_t array_size_at_least(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

#endif
