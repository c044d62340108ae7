/* SPDX-License-Identifier: Apache-2.0 */
/* client.h -- the driver as client.c calls it: a table, filled by linked.c or by opened.c. */
#ifndef CLIENT_H
#define CLIENT_H

#include <cuda.h>

struct entries {
#define ENTRY(name) __typeof__(name) *name;
#include "entries.def"
#undef ENTRY
};

/* Find every entry point; ends the program with a line if one is not there. */
struct entries find_entries(void);

#endif
