/* SPDX-License-Identifier: Apache-2.0 */
/* procaddress.c -- cuGetProcAddress: from a base name and a CUDA version to an entry.
 *
 * The table is generated from the headers (stubs.py). The pointers are those that dlsym gives
 * for the versioned symbols. Works before cuInit, like NVIDIA's driver; the result in each case was
 * observed on NVIDIA's library 550.163.01.
 */
#include "process.h"

#include <stdatomic.h>
#include <string.h>

#include "symbols.h"

/* The first row of a base name, or cuda_symbol_count. */
static size_t find_base(const char *base)
{
    size_t low = 0;
    size_t high = cuda_symbol_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(cuda_symbols[middle].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < cuda_symbol_count && strcmp(cuda_symbols[low].base, base) == 0 ? low
                                                                                : cuda_symbol_count;
}

/* The CUDA version of the machine's driver, which lacks later names. */
static unsigned int driver_version(void)
{
    static atomic_int known;
    int version = atomic_load_explicit(&known, memory_order_relaxed);

    if (!version) {
        cuDriverGetVersion(&version);
        atomic_store_explicit(&known, version, memory_order_relaxed);
    }
    return (unsigned int) version;
}

static CUdriverProcAddressQueryResult lookup(const char *base, unsigned int version,
                                             bool per_thread, void **entry)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    size_t first = find_base(base);
    size_t end = first;
    bool has_per_thread = false;
    unsigned int newest = driver_version();

    *entry = NULL;
    for (; end < cuda_symbol_count && strcmp(cuda_symbols[end].base, base) == 0; end++)
        has_per_thread =
            has_per_thread || (cuda_symbols[end].per_thread && cuda_symbols[end].since <= newest);
    for (size_t i = first; i < end; i++) {
        if (cuda_symbols[i].per_thread != (per_thread && has_per_thread) ||
            cuda_symbols[i].since > newest)
            continue;
        if (cuda_symbols[i].since <= version) {
            *entry = (void *) (uintptr_t) cuda_symbols[i].entry;
            status = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (!*entry) {
            status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    return status;
}

static bool flags_are_valid(cuuint64_t flags)
{
    return !(flags & ~(cuuint64_t) (CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                                    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
}

/* Legacy wins where both are asked for. */
static bool wants_per_thread(cuuint64_t flags)
{
    return flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **entry, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found;

    REQUIRE(symbol && entry && flags_are_valid(flags));
    found = lookup(symbol, (unsigned int) version, wants_per_thread(flags), entry);
    if (status)
        *status = found;
    return CUDA_SUCCESS;
}

/* The first form has no status: a miss is an error, and what entry points to stays as it was. */
CUresult cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags)
{
    void *found;

    REQUIRE(symbol && entry && flags_are_valid(flags));
    if (lookup(symbol, (unsigned int) version, wants_per_thread(flags), &found) !=
        CU_GET_PROC_ADDRESS_SUCCESS)
        return CUDA_ERROR_NOT_FOUND;
    *entry = found;
    return CUDA_SUCCESS;
}
