/* SPDX-License-Identifier: Apache-2.0 */
/* refused.c -- hooks of calls that cannot be accounted for: they always return NOT_SUPPORTED.
 *
 * The entry points from before CUDA 3.2 have addresses and sizes of 32 bits: a truncated address
 * identifies no allocation, and 4 GiB of memory overflow a size. Nothing built since 2010 calls
 * them. The endpoints of a fabric (CUDA 13.3) keep memory that was bound to them and then released.
 */
#include "shim/shim.h"

/* The hooks ignore their parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define HOOK(base, since, result, symbol, params)                                 \
    result symbol params                                                          \
    {                                                                             \
        return shim.open ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED; \
    }
#include "shim/cuda/hooks/refused.def"
#undef HOOK
