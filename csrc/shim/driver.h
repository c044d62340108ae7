/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h -- the driver's own entry points, as function pointers of the same names. */
#ifndef PYVGPU_SHIM_DRIVER_H
#define PYVGPU_SHIM_DRIVER_H

#include "shim/hooks.h"

struct driver {
#define HOOK(base, since, result, symbol, params) result(*symbol) params;
#define CALL(result, symbol, params)              result(*symbol) params;
#include "shim/cuda/hooks.def"
#include "shim/cuda/calls.def"
#undef HOOK
#undef CALL
#define HOOK(result, symbol, params) result(*symbol) params;
#include "shim/nvml/asked.def"
#undef HOOK
};

extern struct driver driver;

/* Find every CUDA entry point above in the original library, and check that both originals are
 * loaded; once, before any hook uses one. A function that this driver lacks returns "not
 * supported". NULL, or the missing library. */
const char *driver_load(void);

/* The same for NVML, once, after driver_load(): only programs that use NVML wait for it. */
void driver_load_nvml(void);

/* The release in the file name of the driver's libcuda ("580.65.06"); "" if it has none. */
void driver_release(char *release, unsigned size);

#endif
