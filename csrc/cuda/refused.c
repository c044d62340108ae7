/* SPDX-License-Identifier: Apache-2.0 */
/* refused.c -- hooks of what cannot be counted: it is not supported, whatever is asked.
 *
 * The entries of before CUDA 3.2 have addresses and sizes of 32 bits: an address that was cut names
 * no allocation, and a device of 4 GiB has no size. Nothing that was built since 2010 calls them.
 * The endpoints of a fabric (CUDA 13.3) keep memory that was bound to them and then released.
 */
#include "shim.h"

/* Whatever is asked, the answer is the same. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define HOOK(base, since, result, symbol, params)                                 \
    result symbol params                                                          \
    {                                                                             \
        return shim.open ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED; \
    }
#include "cuda/hooks/refused.def"
#undef HOOK
