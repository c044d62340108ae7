/* SPDX-License-Identifier: Apache-2.0 */
/* path.h -- follows symbolic links in the last component of a path.
 *
 * realpath(3) asks the kernel about every folder on the way, which costs as much as the rest of
 * attaching the shim. Links to folders need not be followed: the kernel follows them in `..`, too.
 */
#ifndef PYVGPU_CORE_PATH_H
#define PYVGPU_CORE_PATH_H

#include <stddef.h>

#define PATH_LINKS 40 /* as many as the kernel follows */

/* Follow symbolic links until *path*, in a buffer of *size*, is none; the links determine whether
 * it is absolute or relative. 0 or -errno: it does not exist, is too long, or is a cycle. */
int path_follow(char *path, size_t size);

#endif
