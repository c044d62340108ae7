/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h -- the driver's own entry points, as function pointers of the same names. */
#ifndef PYVGPU_DRIVER_H
#define PYVGPU_DRIVER_H

#include "hooks.h"

struct driver {
#define HOOK(base, since, result, symbol, params) result(*symbol) params;
#define CALL(result, symbol, params)              result(*symbol) params;
#include "cuda/hooks.def"
#include "cuda/calls.def"
#undef HOOK
#undef CALL
#define HOOK(result, symbol, params) result(*symbol) params;
#include "nvml/asked.def"
#undef HOOK
};

extern struct driver driver;

/* Find every entry point of CUDA above in the original library, and see that both are there; once,
 * before any hook uses one. What a driver does not have answers that it is not supported. NULL, or
 * what is missing. */
const char *driver_load(void);

/* The same for NVML, once, behind driver_load(): programs that never ask it do not wait for it. */
void driver_load_nvml(void);

/* The release in the file name of the driver's libcuda ("580.65.06"); "" if it names none. */
void driver_release(char *release, unsigned size);

#endif
