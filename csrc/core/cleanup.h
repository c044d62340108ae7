/* SPDX-License-Identifier: Apache-2.0 */
/* cleanup.h -- attributes that release a resource at the end of its scope. */
#ifndef PYVGPU_CORE_CLEANUP_H
#define PYVGPU_CORE_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_close_fd(const int *fd)
{
    int saved = errno;

    if (*fd >= 0)
        close(*fd);
    errno = saved;
}

static inline void cleanup_free_pointer(void *pointer)
{
    free(*(void **) pointer);
}

#define cleanup_close __attribute__((cleanup(cleanup_close_fd)))
#define cleanup_free  __attribute__((cleanup(cleanup_free_pointer)))

#endif
