/* SPDX-License-Identifier: Apache-2.0 */
/* hidden.c -- what tells of others: instances and guests that are not ours, and counters in which
 * the work of everybody on a device is added up and cannot be told apart. Not supported here, as
 * on many devices. (Heat, power, clocks and errors are the device's own, and shown.)
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
        return NVML_ERROR_NOT_SUPPORTED; \
    }
#include "nvml/hooks/hidden.def"
#undef HOOK

#define HOOK(result, symbol, params)     \
    result symbol params                 \
    {                                    \
        ENTER();                         \
        return NVML_ERROR_NOT_SUPPORTED; \
    }
#include "nvml/hooks/hidden_other.def"
#undef HOOK
