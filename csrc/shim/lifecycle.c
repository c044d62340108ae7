/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle.c -- expands lifecycle.def; see lifecycle.h. */
#include "shim/lifecycle.h"

/* Declared here and not by their headers, so that this file needs none of them. */
#define TAKE_LIMITS(module)   void module##_take_limits(const struct quota_limits *limits);
#define OPEN(module)          void module##_open(void);
#define AFTER_FORK(module)    void module##_after_fork(void);
#define CONTEXT_ENDED(module) void module##_context_ended(const struct context *context);
#define MAKE_ROOM(module)     int module##_make_room(unsigned device);
#include "shim/lifecycle.def"

void lifecycle_take_limits(const struct quota_limits *limits)
{
#define TAKE_LIMITS(module) module##_take_limits(limits);
#include "shim/lifecycle.def"
}

void lifecycle_open(void)
{
#define OPEN(module) module##_open();
#include "shim/lifecycle.def"
}

void lifecycle_after_fork(void)
{
#define AFTER_FORK(module) module##_after_fork();
#include "shim/lifecycle.def"
}

void lifecycle_context_ended(const struct context *context)
{
#define CONTEXT_ENDED(module) module##_context_ended(context);
#include "shim/lifecycle.def"
}

int lifecycle_make_room(unsigned device)
{
    int made = 0;

#define MAKE_ROOM(module) made |= module##_make_room(device);
#include "shim/lifecycle.def"
    return made;
}
