/* SPDX-License-Identifier: Apache-2.0 */
/* client.h -- the table of driver functions for client.c, filled by linked.c or opened.c. */
#ifndef CLIENT_H
#define CLIENT_H

#include <cuda.h>

struct entries {
#define ENTRY(name) __typeof__(name) *name;
#include "entries.def"
#undef ENTRY
};

/* Find every entry point; exits with a message if one is missing. */
struct entries find_entries(void);

#endif
