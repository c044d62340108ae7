/* SPDX-License-Identifier: Apache-2.0 */
/* cu.c -- resolves the driver's functions in the ways that programs use; see cu.h. */
#include "cu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cu cu;

typedef CUresult route_t(const char *, void **, int, cuuint64_t);
typedef CUresult route_v2_t(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *);

enum { NEWEST_ASKED = 12000, PER_THREAD = 2 };

static void *library;
static route_t *route;
static route_v2_t *route_v2;
static int version;

static _Noreturn void end_without(const char *name)
{
    printf("{\"missing\": \"%s\"}\n", name);
    exit(NO_FUNCTION);
}

static void *dlsym_or_end(const char *name)
{
    void *found = dlsym(library, name);

    if (!found)
        end_without(name);
    return found;
}

/* The name that cuGetProcAddress knows: without the version that the symbol has. */
static void base_of(const char *name, char *base, size_t size)
{
    size_t length = strlen(name);

    if (length > 3 && strcmp(name + length - 3, "_v2") == 0)
        length -= 3;
    snprintf(base, size, "%.*s", (int) length, name);
}

static void *routed(const char *name, cuuint64_t flags)
{
    char base[80];
    void *found = NULL;

    base_of(name, base, sizeof(base));
    if (route_v2) {
        CUdriverProcAddressQueryResult status;

        return route_v2(base, &found, version, flags, &status) == CUDA_SUCCESS ? found : NULL;
    }
    return route(base, &found, version, flags) == CUDA_SUCCESS ? found : NULL;
}

static void *find(const char *way, const char *name, void *linked)
{
    void *found;

    if (strcmp(way, "linked") == 0)
        found = linked;
    else if (strcmp(way, "dlsym") == 0)
        found = dlsym(library, name);
    else
        found = routed(name, strcmp(way, "thread") == 0 ? PER_THREAD : 0);
    if (!found)
        end_without(name);
    return found;
}

void cu_open(const char *way)
{
    static const char *const ways[] = {"linked", "dlsym", "routed", "routed_v2", "thread"};
    CUresult (*get_version)(int *);
    size_t i = 0;

    while (i < sizeof(ways) / sizeof(ways[0]) && strcmp(way, ways[i]) != 0)
        i++;
    if (i == sizeof(ways) / sizeof(ways[0])) {
        fprintf(stderr, "%s: must be linked, dlsym, routed, routed_v2 or thread\n", way);
        exit(BAD_USAGE);
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(FAILED);
    }
    *(void **) &get_version = dlsym_or_end("cuDriverGetVersion");
    get_version(&version);
    version = version < NEWEST_ASKED ? version : NEWEST_ASKED;
    if (i >= 2)
        *(void **) &route = dlsym_or_end("cuGetProcAddress");
    if (i >= 3) /* like the CUDA runtime: the newer one through the older */
        *(void **) &route_v2 = find("routed", "cuGetProcAddress", NULL);
#define FIND(name, parameters) *(void **) &cu.name = find(way, #name, (void *) name);
    CU_FUNCTIONS(FIND)
#undef FIND
}

CUcontext cu_begin(const char *way)
{
    CUcontext context;

    cu_open(way);
    CHECK(cu.cuInit(0));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cu.cuCtxSetCurrent(context));
    return context;
}

void cu_check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", call, (int) result);
    exit(FAILED);
}

void wait_for_line(void)
{
    char line[64];

    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        exit(FAILED);
}

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}
