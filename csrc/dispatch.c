/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c -- cuGetProcAddress: ask the driver, then map the pointer it returned to our hook.
 *
 * Versions, flags and the symbol's status stay the driver's; a symbol that nobody here has heard
 * of is handed through. PyTorch makes thousands of look-ups, so the table is one hash probe.
 */
#include "dispatch.h"
#include "compiler.h"
#include "driver.h"
#include "shim.h"

#define PLACES 256 /* a power of two, several times the number of hooks */

struct route {
    void *function;
    void *hook;
};

static struct route routes[PLACES];

static unsigned home_of(const void *function)
{
    return (unsigned) (((uint64_t) (uintptr_t) function * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

static void add(void *function, void *hook)
{
    unsigned place = home_of(function);

    while (routes[place].function && routes[place].function != function)
        place = (place + 1) % PLACES;
    routes[place] = (struct route) {function, hook};
}

void dispatch_build(void)
{
#define HOOK(base, since, result, symbol, params) add((void *) driver.symbol, (void *) symbol);
#include "cuda/hooks.def"
#undef HOOK
}

void *dispatch_route(void *function)
{
    unsigned place = home_of(function);

    while (routes[place].function) {
        if (routes[place].function == function)
            return routes[place].hook;
        place = (place + 1) % PLACES;
    }
    return function;
}

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
