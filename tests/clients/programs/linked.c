/* SPDX-License-Identifier: Apache-2.0 */
/* linked.c -- the driver's entry points as the loader binds them in a linked program. */
#include "client.h"

struct entries find_entries(void)
{
    return (struct entries) {
#define ENTRY(name) .name = name,
#include "entries.def"
#undef ENTRY
    };
}
