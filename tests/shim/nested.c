/* SPDX-License-Identifier: Apache-2.0 */
/* nested.c -- LD_PRELOAD library that calls cuInit when code inside cuInit reads the environment.
 *
 * A profiler's library, which the driver loads, does so, too: it calls CUDA before cuInit returns.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

char *getenv(const char *name)
{
    static char *(*next)(const char *);
    static __thread int inside;
    int (*initialise)(unsigned int);

    if (!next)
        next = (char *(*) (const char *) ) dlsym(RTLD_NEXT, "getenv");
    if (!inside && (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0)) {
        void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

        inside = 1;
        initialise = library ? (int (*)(unsigned int)) dlsym(library, "cuInit") : NULL;
        if (initialise)
            initialise(0);
        inside = 0;
    }
    return next(name);
}
