/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c -- a CUDA program that prints what it gets; no header, no library at link time.
 *
 *   probe LIBRARY [BYTES] [wait]
 *
 * Prints "init CODE", "total BYTES", "alloc CODE", each on a line; then, with "wait", reads
 * standard input to its end.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*init_function)(unsigned);
typedef int (*device_function)(int *, int);
typedef int (*total_function)(size_t *, int);
typedef int (*context_function)(void **, int);
typedef int (*current_function)(void *);
typedef int (*alloc_function)(unsigned long long *, size_t);

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    if (!symbol) {
        printf("no %s\n", name);
        exit(3);
    }
    return symbol;
}

int main(int count, char **arguments)
{
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    void *context;
    size_t total = 0;
    unsigned long long address;
    int device, code;

    if (!library) {
        printf("dlopen %s\n", dlerror());
        return 2;
    }
    code = ((init_function) find(library, "cuInit"))(0);
    printf("init %d\n", code);
    if (code == 0 && count > 2) {
        ((device_function) find(library, "cuDeviceGet"))(&device, 0);
        ((total_function) find(library, "cuDeviceTotalMem_v2"))(&total, device);
        printf("total %zu\n", total);
        ((context_function) find(library, "cuDevicePrimaryCtxRetain"))(&context, device);
        ((current_function) find(library, "cuCtxSetCurrent"))(context);
        code = ((alloc_function) find(library, "cuMemAlloc_v2"))(&address,
                                                                 strtoull(arguments[2], NULL, 0));
        printf("alloc %d\n", code);
    }
    fflush(stdout);
    if (count > 3 && strcmp(arguments[3], "wait") == 0)
        while (read(0, &device, sizeof(device)) > 0)
            ;
    return code ? 1 : 0;
}
