/* SPDX-License-Identifier: Apache-2.0 */
/* glibc.h -- binds symbols to their glibc 2.17 versions; included first in every file of the shim.
 *
 * The shim is mounted into containers whose glibc may be years older than the one that it was built
 * with. Functions that newer versions moved or renamed are bound to their first version here; a
 * test checks the result. Old systems have some of them in libdl and libpthread, which the driver
 * needs by name and so loads.
 */
#ifndef PYVGPU_CORE_GLIBC_H
#define PYVGPU_CORE_GLIBC_H

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#define LATER_VERSION "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#define LATER_VERSION "GLIBC_2.17"
#else
#error "the shim is for x86-64 and aarch64"
#endif

#define BIND_TO(symbol, version) __asm__(".symver " #symbol "," #symbol "@" version)
#define BIND(symbol)             BIND_TO(symbol, FIRST_VERSION)

BIND(dladdr);
BIND_TO(dlinfo, LATER_VERSION);
BIND(dlopen);
BIND(dlsym);
BIND(pthread_once);

/* Of pthread_cleanup_push(). */
BIND_TO(__pthread_register_cancel, LATER_VERSION);
BIND_TO(__pthread_unregister_cancel, LATER_VERSION);
BIND_TO(__pthread_unwind_next, LATER_VERSION);

#undef BIND
#undef BIND_TO
#undef LATER_VERSION

/* These became symbols in 2.33; before that, they were inline wrappers of others. */
#include <sys/stat.h>

#if defined(__x86_64__)
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

int __fxstat(int version, int fd, struct stat *status);
int __xstat(int version, const char *path, struct stat *status);

#define fstat(fd, status)  __fxstat(STAT_VERSION, fd, status)
#define stat(path, status) __xstat(STAT_VERSION, path, status)

#endif
