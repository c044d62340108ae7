/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.h -- an argv written as a JSON array of strings. Needs no libc. */
#ifndef PYVGPU_SIDECAR_ARGUMENTS_H
#define PYVGPU_SIDECAR_ARGUMENTS_H

#include <stddef.h>

/* Take the *length* bytes of *text* apart, in place; a byte more must be there. Returns how many
 * arguments it has, which *argv* then points to with a NULL after them, or -1 if *text* is no array
 * of one or more strings, has a NUL in one, or more than *most* of them. */
long arguments_parse(char *text, size_t length, char **argv, size_t most);

#endif
