/* SPDX-License-Identifier: Apache-2.0 */
/* legacy.c -- the entries of before CUDA 3.2, whose addresses and sizes have 32 bits.
 *
 * Nothing that was built since 2010 calls them. They are refused rather than counted: an address
 * cut to 32 bits names no allocation, and a device of 4 GiB and more has no size in them.
 */
#include "shim.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* whatever is asked, the answer is the same \
                                                     */

#define HOOK(base, since, result, symbol, params)                                 \
    result symbol params                                                          \
    {                                                                             \
        return shim.open ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED; \
    }
#include "cuda/hooks/legacy.def"
#undef HOOK
