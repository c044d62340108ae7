/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c -- table of the driver's functions and our hooks; see dispatch.h.
 *
 * PyTorch makes thousands of look-ups, so the table takes one hash probe.
 */
#include "shim/dispatch.h"
#include "core/compiler.h"
#include "shim/driver.h"

#include <string.h>

#define PLACES_SHIFT 11
#define PLACES       (1U << PLACES_SHIFT)

struct route {
    void *hook;
    size_t offset; /* of the driver's own function, in struct driver */
};

static const struct route routes[] = {
#define HOOK(base, since, result, symbol, params) \
    {(void *) symbol, offsetof(struct driver, symbol)},
#include "shim/cuda/hooks.def"
#undef HOOK
};

_Static_assert(PLACES >= 4 * ARRAY_SIZE(routes),
               "a probe is short, and ends at all, where most places are free");

/* Hash table by the driver's function: the index of its route + 1, 0 for none. Small, because every
 * program that starts touches all of it. */
static uint16_t places[PLACES];

static unsigned home_of(const void *function)
{
    return (unsigned) (((uint64_t) (uintptr_t) function * UINT64_C(0x9e3779b97f4a7c15)) >>
                       (64 - PLACES_SHIFT));
}

static void *function_of(const struct route *route)
{
    void *function;

    memcpy(&function, (const char *) &driver + route->offset, sizeof(function));
    return function;
}

/* The route of *function*, or NULL; *place* is its index, or where it would be. */
static const struct route *find(const void *function, unsigned *place)
{
    for (*place = home_of(function); places[*place]; *place = (*place + 1) % PLACES) {
        const struct route *route = &routes[places[*place] - 1];

        if (function_of(route) == function)
            return route;
    }
    return NULL;
}

void dispatch_build(void)
{
    for (unsigned i = 0; i < ARRAY_SIZE(routes); i++) {
        unsigned place;

        find(function_of(&routes[i]), &place);
        places[place] = (uint16_t) (i + 1);
    }
}

void *dispatch_route(void *function)
{
    unsigned place;
    const struct route *route = find(function, &place);

    return route ? route->hook : function;
}
