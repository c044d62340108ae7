/* SPDX-License-Identifier: Apache-2.0 */
/* path.c -- follows links; see path.h. */
#include "core/path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int path_follow(char *path, size_t size)
{
    char target[PATH_MAX];

    for (int links = 0; links < PATH_LINKS; links++) {
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        const char *slash = strrchr(path, '/');
        size_t kept;

        if (length < 0)
            return errno == EINVAL ? 0 : -errno; /* EINVAL: not a link */
        target[length] = '\0';
        kept = slash && target[0] != '/' ? (size_t) (slash + 1 - path) : 0;
        if (kept + (size_t) length >= size)
            return -ENAMETOOLONG;
        memcpy(path + kept, target, (size_t) length + 1);
    }
    return -ELOOP;
}
