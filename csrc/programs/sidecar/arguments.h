/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.h -- parses an argv from a JSON array of strings. Needs no libc. */
#ifndef PYVGPU_PROGRAMS_SIDECAR_ARGUMENTS_H
#define PYVGPU_PROGRAMS_SIDECAR_ARGUMENTS_H

#include <stddef.h>

/* Parse the *length* bytes of *text* in place; one more byte must be allocated. Returns the number
 * of arguments, which *argv* then points to with a NULL after them, or -1 if *text* is not an array
 * of one or more strings, has a NUL in one, or more than *most* of them. */
long arguments_parse(char *text, size_t length, char **argv, size_t most);

#endif
