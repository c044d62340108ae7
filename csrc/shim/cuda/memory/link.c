/* SPDX-License-Identifier: Apache-2.0 */
/* link.c -- ends of exports and imports; see link.h. */
#include "shim/cuda/memory/link.h"
#include "core/shared_memory.h"
#include "shim/shim.h"

int link_end(const struct allocation *allocation)
{
    if (allocation->bytes)
        return shared_memory_end_export(&shim.region, allocation->link);
    shared_memory_end_import(&shim.region, allocation->link);
    return 0;
}

static int collect(unsigned device, int early)
{
    uint64_t bytes = shared_memory_collect(&shim.region, device, early);

    if (bytes)
        ledger_refund(&shim.ledger, device, bytes);
    return bytes != 0;
}

int link_collect(unsigned device)
{
    return collect(device, 0);
}

void link_collect_all(void)
{
    int early;

    if (likely(!__atomic_load_n(&shim.region.shared_memory_freed, __ATOMIC_RELAXED)))
        return;
    early = shared_memory_is_early();
    for (unsigned device = 0; device < shim.limits.device_count; device++)
        collect(device, early);
}
