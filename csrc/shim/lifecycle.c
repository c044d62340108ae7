/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle.c -- expands lifecycle.def; see lifecycle.h. */
#include "shim/lifecycle.h"

/* Declared here and not by their headers, so that this file needs none of them. */
#define AFTER_FORK(module)    void module##_after_fork(void);
#define CONTEXT_ENDED(module) void module##_context_ended(const struct context *context);
#define MAKE_ROOM(module)     int module##_make_room(unsigned device);
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
#undef MAKE_ROOM

void lifecycle_after_fork(void)
{
#define AFTER_FORK(module) module##_after_fork();
#define CONTEXT_ENDED(module)
#define MAKE_ROOM(module)
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
#undef MAKE_ROOM
}

void lifecycle_context_ended(const struct context *context)
{
#define AFTER_FORK(module)
#define CONTEXT_ENDED(module) module##_context_ended(context);
#define MAKE_ROOM(module)
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
#undef MAKE_ROOM
}

int lifecycle_make_room(unsigned device)
{
    int made = 0;

#define AFTER_FORK(module)
#define CONTEXT_ENDED(module)
#define MAKE_ROOM(module) made |= module##_make_room(device);
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
#undef MAKE_ROOM
    return made;
}
