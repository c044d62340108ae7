/* SPDX-License-Identifier: Apache-2.0 */
/* proc_address.c -- hooks of cuGetProcAddress: ask the driver, then map its pointer to our hook.
 *
 * Versions, flags and the symbol's status stay the driver's; an unknown symbol is passed through.
 */
#include "shim/dispatch.h"
#include "shim/driver.h"
#include "shim/shim.h"

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUresult result;

    if (!shim_loaded())
        return CUDA_ERROR_NOT_PERMITTED;
    result = driver.cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && function)
        *function = dispatch_route(*function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUresult result;

    if (!shim_loaded())
        return CUDA_ERROR_NOT_PERMITTED;
    result = driver.cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && function)
        *function = dispatch_route(*function);
    return result;
}
