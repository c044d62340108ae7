/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.c -- a client of the CUDA runtime, which is linked in or is the library LIBRARY.
 *
 *   runtime QUOTA_BYTES [LIBRARY]
 *
 * With -DKIT_LINKED the runtime is linked in, statically or not. Prints the memory that the runtime
 * shows in two ways, whether copies are correct, and the result of a request past QUOTA_BYTES.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_FUNCTION = 3, BAD_USAGE = 64, FAILED = 1, TO_DEVICE = 1, TO_HOST = 2 };

#define FUNCTIONS(FUNCTION)                                    \
    FUNCTION(cudaRuntimeGetVersion, (int *) )                  \
    FUNCTION(cudaMemGetInfo, (size_t *, size_t *) )            \
    FUNCTION(cudaMalloc, (void **, size_t) )                   \
    FUNCTION(cudaFree, (void *) )                              \
    FUNCTION(cudaMemcpy, (void *, const void *, size_t, int) ) \
    FUNCTION(cudaMallocAsync, (void **, size_t, void *) )      \
    FUNCTION(cudaFreeAsync, (void *, void *) )                 \
    FUNCTION(cudaGetLastError, (void) )                        \
    FUNCTION(cudaDeviceSynchronize, (void) )                   \
    FUNCTION(cudaDeviceReset, (void) )

#ifdef KIT_LINKED
#define DECLARE(name, parameters) extern int name parameters;
FUNCTIONS(DECLARE)
#undef DECLARE
#endif

static struct {
#define MEMBER(name, parameters) int(*name) parameters;
    FUNCTIONS(MEMBER)
#undef MEMBER
} runtime;

static void find_functions(const char *library)
{
#ifdef KIT_LINKED
    (void) library;
#define FIND(name, parameters) runtime.name = name;
#else
    void *handle = dlopen(library, RTLD_NOW);

    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(FAILED);
    }
#define FIND(name, parameters)                       \
    *(void **) &runtime.name = dlsym(handle, #name); \
    if (!runtime.name) {                             \
        printf("{\"missing\": \"%s\"}\n", #name);    \
        exit(NO_FUNCTION);                           \
    }
#endif
    FUNCTIONS(FIND)
#undef FIND
}

static void check(const char *call, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", call, result);
    exit(FAILED);
}
#define CHECK(call) check(#call, call)

int main(int argc, char **argv)
{
    static unsigned char out[1 << 20];
    static unsigned char in[1 << 20];
    size_t beyond;
    size_t available;
    size_t total;
    int version;
    void *there;
    void *ordered;
    void *refused;

#ifdef KIT_LINKED
    if (argc != 2) {
        fprintf(stderr, "usage: runtime QUOTA_BYTES, for example runtime 4294967296\n");
#else
    if (argc != 3) {
        fprintf(stderr, "usage: runtime QUOTA_BYTES LIBRARY, for example runtime 4294967296 "
                        "libcudart.so.12\n");
#endif
        return BAD_USAGE;
    }
    beyond = strtoull(argv[1], NULL, 10) + (1 << 21);
    find_functions(argv[argc - 1]);
    CHECK(runtime.cudaRuntimeGetVersion(&version));
    CHECK(runtime.cudaMemGetInfo(&available, &total));
    for (size_t i = 0; i < sizeof(out); i++)
        out[i] = (unsigned char) (i * 31 + i / 256);
    CHECK(runtime.cudaMalloc(&there, sizeof(out)));
    CHECK(runtime.cudaMemcpy(there, out, sizeof(out), TO_DEVICE));
    CHECK(runtime.cudaMemcpy(in, there, sizeof(in), TO_HOST));
    CHECK(runtime.cudaMallocAsync(&ordered, sizeof(out), NULL));
    CHECK(runtime.cudaFreeAsync(ordered, NULL));
    CHECK(runtime.cudaDeviceSynchronize());
    printf("{\"version\": %d, \"total\": %zu, \"free\": %zu, \"same\": %d, ", version, total,
           available, memcmp(in, out, sizeof(in)) == 0);
    printf("\"past\": %d, ", runtime.cudaMalloc(&refused, beyond));
    runtime.cudaGetLastError(); /* or a later call would return it */
    printf("\"past_async\": %d, ", runtime.cudaMallocAsync(&refused, beyond, NULL));
    runtime.cudaGetLastError();
    CHECK(runtime.cudaFree(there));
    printf("\"reset\": %d}\n", runtime.cudaDeviceReset());
    return 0;
}
