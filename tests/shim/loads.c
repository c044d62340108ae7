/* SPDX-License-Identifier: Apache-2.0 */
/* loads.c -- loads libraries in the order of its arguments and reports which objects it got.
 *
 * Built with -DLINKED_CUDA or -DLINKED_NVML it is linked to these libraries as well. It calls
 * none of their functions: it only reports which object a symbol resolves to, and how often it is
 * mapped. One line each:
 *
 *   linked SYMBOL PATH         an entry point that the program was linked to, and its object
 *   loaded HANDLE SYMBOL PATH  the same through the handle of each argument
 *   mapped INODE               each executable mapping of a file
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef LINKED_CUDA
extern int cuInit(unsigned int flags);
extern int cuDriverGetVersion(int *version);
#endif
#ifdef LINKED_NVML
extern int nvmlInit_v2(void);
#endif

static const char *object_of(void *symbol)
{
    Dl_info found;

    return symbol && dladdr(symbol, &found) ? found.dli_fname : "none";
}

static int load(const char *name)
{
    static const char *const symbols[] = {"cuInit", "nvmlInit_v2"};
    void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);

    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (unsigned i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
        printf("loaded %p %s %s\n", handle, symbols[i], object_of(dlsym(handle, symbols[i])));
    return 0;
}

static void show_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    char access[5];
    unsigned long inode;

    while (maps && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%*s %4s %*s %*s %lu", access, &inode) == 2 && access[2] == 'x' && inode)
            printf("mapped %lu\n", inode);
    if (maps)
        fclose(maps);
}

int main(int argc, char **argv)
{
#ifdef LINKED_CUDA
    printf("linked cuInit %s\n", object_of((void *) cuInit));
    printf("linked cuDriverGetVersion %s\n", object_of((void *) cuDriverGetVersion));
#endif
#ifdef LINKED_NVML
    printf("linked nvmlInit_v2 %s\n", object_of((void *) nvmlInit_v2));
#endif
    for (int i = 1; i < argc; i++)
        if (load(argv[i]) != 0)
            return 1;
    show_mappings();
    return 0;
}
