/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c -- finds the driver's own entry points through the private names of its libraries.
 *
 * The two originals are DT_NEEDED by the shim, so they are loaded already; dlopen() of these names
 * gives exactly them, whatever else is called libcuda.so.1.
 */
#include "shim/driver.h"
#include "core/compiler.h"
#include "core/path.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define CUDA_ORIGIN "libcuda-origin.so.1"
#define NVML_ORIGIN "libnvidia-ml-origin.so.1"

struct driver driver;

struct entry {
    const char *symbol;
    size_t offset;
};

static const struct entry cuda_entries[] = {
#define HOOK(base, since, result, symbol, params) {#symbol, offsetof(struct driver, symbol)},
#define CALL(result, symbol, params)              {#symbol, offsetof(struct driver, symbol)},
#include "shim/cuda/hooks.def"
#include "shim/cuda/calls.def"
#undef HOOK
#undef CALL
};

static const struct entry nvml_entries[] = {
#define HOOK(result, symbol, params) {#symbol, offsetof(struct driver, symbol)},
#include "shim/nvml/asked.def"
#undef HOOK
};

/* For functions that this driver does not have; in these ABIs the caller cleans up arguments. */
static CUresult cuda_not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t nvml_not_found(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static const char *load(const char *library, const struct entry *entries, size_t count,
                        void *missing)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);

    if (!handle)
        return library;
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(handle, entries[i].symbol);

        memcpy((char *) &driver + entries[i].offset, found ? &found : &missing, sizeof(found));
    }
    return NULL;
}

const char *driver_load(void)
{
    const char *missing =
        load(CUDA_ORIGIN, cuda_entries, ARRAY_SIZE(cuda_entries), (void *) cuda_not_supported);

    return missing ? missing : load(NVML_ORIGIN, NULL, 0, NULL);
}

void driver_load_nvml(void)
{
    load(NVML_ORIGIN, nvml_entries, ARRAY_SIZE(nvml_entries), (void *) nvml_not_found);
}

void driver_release(char *release, unsigned size)
{
    static const char stem[] = "libcuda.so.";
    void *handle = dlopen(CUDA_ORIGIN, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *loaded = NULL;
    char path[PATH_MAX];
    const char *name;

    /* Not by dladdr(), which scans all symbols of the library. */
    *release = '\0';
    if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &loaded) != 0 ||
        strlen(loaded->l_name) >= sizeof(path) ||
        path_follow(strcpy(path, loaded->l_name), sizeof(path)) != 0)
        return;
    name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (strncmp(name, stem, strlen(stem)) == 0 && strchr(name + strlen(stem), '.'))
        snprintf(release, size, "%s", name + strlen(stem));
}
