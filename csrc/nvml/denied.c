/* SPDX-License-Identifier: Apache-2.0 */
/* denied.c -- hooks that give one answer, whatever is asked of a device that is the quota's.
 *
 * Whatever changes a device, or the machine, is not permitted, as it is not to an ordinary user: a
 * device is everybody's. What tells of others is not supported, as on many devices: instances and
 * guests that are not ours, and counters in which the work of everybody on a device is added up and
 * cannot be told apart. (Heat, power, clocks and errors are the device's own, and shown.) The
 * driver is never asked.
 */
#include "nvml/device.h"

/* The arguments are there for the signature alone; nothing looks at them. */
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
#include "nvml/hooks/setter.def"
#undef ANSWER
#define ANSWER NVML_ERROR_NOT_SUPPORTED
#include "nvml/hooks/hidden.def"
#undef ANSWER
#undef HOOK

#define HOOK(result, symbol, params) \
    result symbol params             \
    {                                \
        ENTER();                     \
        return ANSWER;               \
    }
#define ANSWER NVML_ERROR_NO_PERMISSION
#include "nvml/hooks/setter_other.def"
#undef ANSWER
#define ANSWER NVML_ERROR_NOT_SUPPORTED
#include "nvml/hooks/hidden_other.def"
#undef ANSWER
#undef HOOK
