/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h -- declares every hook in the tables; one without a definition is a link error. */
#ifndef PYVGPU_SHIM_HOOKS_H
#define PYVGPU_SHIM_HOOKS_H

#define __CUDA_API_VERSION_INTERNAL /* keeps cuda.h from renaming functions: cuX is cuX */
#define NVML_NO_UNVERSIONED_FUNC_DEFS

#include <cuda.h>
#include <nvml.h>

#define EXPORTED __attribute__((visibility("default")))

#define HOOK(base, since, result, symbol, params) EXPORTED result symbol params;
#include "shim/cuda/hooks.def"
#undef HOOK

#define HOOK(result, symbol, params) EXPORTED result symbol params;
#include "shim/nvml/hooks.def"
#undef HOOK

#endif
