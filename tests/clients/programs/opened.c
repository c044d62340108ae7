/* SPDX-License-Identifier: Apache-2.0 */
/* opened.c -- the driver's entry points as a program finds them that is not linked to it.
 *
 * By dlsym, each under the versioned name from cuda.h; or, with ASK_THE_DRIVER defined, by
 * cuGetProcAddress, each under its plain name and with a CUDA version.
 */
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT(name)          #name
#define EXPANDED_TEXT(name) TEXT(name)

static void *opened(const char *name)
{
    static void *library;
    void *symbol;

    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    symbol = library ? dlsym(library, name) : NULL;
    if (symbol)
        return symbol;
    fprintf(stderr, "%s: %s\n", name, dlerror());
    exit(1);
}

#ifdef ASK_THE_DRIVER
static void *find(const char *plain, const char *expanded)
{
    __typeof__(cuGetProcAddress) *ask =
        (__typeof__(cuGetProcAddress) *) opened(EXPANDED_TEXT(cuGetProcAddress));
    CUdriverProcAddressQueryResult status;
    void *function = NULL;
    CUresult result = ask(plain, &function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status);

    if (result == CUDA_SUCCESS && function)
        return function;
    fprintf(stderr, "%s: cuGetProcAddress of %s gave %d\n", expanded, plain, (int) result);
    exit(1);
}
#else
static void *find(const char *plain, const char *expanded)
{
    (void) plain;
    return opened(expanded);
}
#endif

struct entries find_entries(void)
{
    return (struct entries) {
#define ENTRY(name) .name = (__typeof__(name) *) find(#name, EXPANDED_TEXT(name)),
#include "entries.def"
#undef ENTRY
    };
}
