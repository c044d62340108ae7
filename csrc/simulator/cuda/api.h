/* SPDX-License-Identifier: Apache-2.0 */
/* api.h -- cuda.h as the library that defines its names needs it.
 *
 * Each name means itself (cuMemAlloc is the 32-bit entry, cuMemAlloc_v2 the one in use), every
 * _ptds and _ptsz form is declared, and what is declared here is exported.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_API_H
#define PYVGPU_SIMULATOR_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#pragma GCC visibility pop

#endif
