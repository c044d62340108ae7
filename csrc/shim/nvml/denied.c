/* SPDX-License-Identifier: Apache-2.0 */
/* denied.c -- NVML hooks that always return NO_PERMISSION or NOT_SUPPORTED.
 *
 * Calls that change a device or the machine return NO_PERMISSION, as for an ordinary user, since
 * the device is shared. Calls that reveal others return NOT_SUPPORTED, as on many devices:
 * instances and guests that are not ours, and counters that add up the work of all processes on a
 * device. (Temperature, power, clocks and errors belong to the device, and are shown.) The driver
 * is never called.
 */
#include "shim/nvml/device.h"

/* The parameters are only there for the signature. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define HOOK(result, symbol, params) \
    result symbol params             \
    {                                \
        unsigned index;              \
                                     \
        ENTER_DEVICE(device, index); \
        return ANSWER;               \
    }
#define ANSWER NVML_ERROR_NO_PERMISSION
#include "shim/nvml/hooks/setter.def"
#undef ANSWER
#define ANSWER NVML_ERROR_NOT_SUPPORTED
#include "shim/nvml/hooks/hidden.def"
#undef ANSWER
#undef HOOK

#define HOOK(result, symbol, params) \
    result symbol params             \
    {                                \
        ENTER();                     \
        return ANSWER;               \
    }
#define ANSWER NVML_ERROR_NO_PERMISSION
#include "shim/nvml/hooks/setter_other.def"
#undef ANSWER
#define ANSWER NVML_ERROR_NOT_SUPPORTED
#include "shim/nvml/hooks/hidden_other.def"
#undef ANSWER
#undef HOOK
