/* SPDX-License-Identifier: Apache-2.0 */
/* setter.c -- whatever changes a device, or the machine: a device is everybody's, so nobody here is
 * permitted to, as an ordinary user is not. The driver is never asked.
 */
#include "driver.h"
#include "nvml/device.h"

/* The arguments are there for the signature alone; nothing looks at them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define HOOK(result, symbol, params)     \
    result symbol params                 \
    {                                    \
        unsigned index;                  \
                                         \
        ENTER_DEVICE(device, index);     \
        return NVML_ERROR_NO_PERMISSION; \
    }
#include "nvml/hooks/setter.def"
#undef HOOK

#define HOOK(result, symbol, params)     \
    result symbol params                 \
    {                                    \
        ENTER();                         \
        return NVML_ERROR_NO_PERMISSION; \
    }
#include "nvml/hooks/setter_other.def"
#undef HOOK
