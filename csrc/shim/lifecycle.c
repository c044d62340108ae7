/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle.c -- expands lifecycle.def; see lifecycle.h. */
#include "shim/lifecycle.h"

/* Declared here and not by their headers, so that this file needs none of them. */
#define AFTER_FORK(module)    void module##_after_fork(void);
#define CONTEXT_ENDED(module) void module##_context_ended(const struct context *context);
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED

void lifecycle_after_fork(void)
{
#define AFTER_FORK(module) module##_after_fork();
#define CONTEXT_ENDED(module)
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
}

void lifecycle_context_ended(const struct context *context)
{
#define AFTER_FORK(module)
#define CONTEXT_ENDED(module) module##_context_ended(context);
#include "shim/lifecycle.def"
#undef AFTER_FORK
#undef CONTEXT_ENDED
}
