/* SPDX-License-Identifier: Apache-2.0 */
/* path.h -- which file a path leads to, told by its last component alone.
 *
 * realpath(3) asks the kernel about every folder on the way, which costs as much as all else that
 * an attach does. Folders that are links need not be followed: the kernel does it in `..` too.
 */
#ifndef PYVGPU_PATH_H
#define PYVGPU_PATH_H

#include <stddef.h>

#define PATH_LINKS 40 /* as many as the kernel follows */

/* Follow symbolic links until *path*, in a buffer of *size*, names none; it stays absolute or
 * relative as the links say. 0 or -errno: it does not exist, is too long, or leads in a circle. */
int path_follow(char *path, size_t size);

#endif
