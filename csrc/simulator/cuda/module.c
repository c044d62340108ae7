/* SPDX-License-Identifier: Apache-2.0 */
/* module.c -- lifetime of libraries, modules in contexts, and functions. */
#include "module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "attribute.h"
#include "heap.h"
#include "memory.h"

/* Guards the lists. Taken after the lock of contexts, if both are. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUlib_st *libraries;

static const char function_tag;

/* --- functions ------------------------------------------------------------------------- */

struct function *module_function(const void *handle)
{
    struct function *function = (struct function *) handle;

    return function && function->tag == &function_tag ? function : NULL;
}

struct launch_function *module_launch_function(CUfunction handle)
{
    struct function *function = module_function(handle);

    return function ? &function->launch : NULL;
}

static struct function *make_functions(struct CUlib_st *library, struct CUmod_st *module)
{
    size_t count = library->image.kernel_count;
    struct function *functions = calloc(count + 1, sizeof(*functions));
    const uint32_t shared_bytes = 48 * 1024;

    for (size_t i = 0; functions && i < count; i++) {
        const struct image_kernel *kernel = &library->image.kernels[i];
        struct function *function = &functions[i];

        launch_plan(&function->launch, kernel->name);
        function->launch.max_threads = kernel->maximum_threads;
        function->launch.static_shared_bytes = kernel->shared_bytes;
        function->launch.dynamic_shared_bytes =
            kernel->shared_bytes < shared_bytes ? shared_bytes - kernel->shared_bytes : 0;
        function->kernel = kernel;
        function->library = library;
        function->module = module;
        function->settings[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
        function->tag = &function_tag;
    }
    return functions;
}

static void free_functions(struct function *functions, size_t count)
{
    for (size_t i = 0; functions && i < count; i++)
        functions[i].tag = NULL;
    free(functions);
}

/* --- modules --------------------------------------------------------------------------- */

static void free_module(struct CUmod_st *module)
{
    free_functions(module->functions, module->library->image.kernel_count);
    free(module->variables);
    free(module);
}

static void free_variables(struct CUmod_st *module)
{
    for (size_t i = 0; i < module->library->image.variable_count; i++)
        if (module->variables[i])
            memory_free(module->variables[i], MEMORY_MODULE);
}

/* Zero the memory. Large allocations have fresh pages; small ones reuse pages with old data. */
static void clear(CUdeviceptr address, uint64_t bytes)
{
    static const unsigned char zeros[4096];

    if (bytes >= HEAP_LARGE)
        return;
    for (uint64_t done = 0; done < bytes; done += sizeof(zeros))
        memory_write(address + done, zeros,
                     bytes - done < sizeof(zeros) ? bytes - done : sizeof(zeros));
}

/* Give each variable its memory and first bytes. */
static CUresult load_variables(struct CUmod_st *module, struct work_context *work)
{
    const struct image *image = &module->library->image;

    for (size_t i = 0; i < image->variable_count; i++) {
        const struct image_variable *variable = &image->variables[i];
        CUresult result =
            memory_allocate(work, MEMORY_MODULE, variable->bytes, &module->variables[i]);

        if (result != CUDA_SUCCESS)
            return result;
        if (variable->initial)
            memory_write(module->variables[i], variable->initial, variable->bytes);
        else
            clear(module->variables[i], variable->bytes);
    }
    return CUDA_SUCCESS;
}

/* Lock held. */
static CUresult open_locked(struct CUlib_st *library, struct work_context *work,
                            struct CUmod_st **found)
{
    struct CUmod_st *module = library->modules;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    while (module && module->context_id != work->id)
        module = module->next;
    if (!module) {
        module = calloc(1, sizeof(*module));
        if (!module)
            return CUDA_ERROR_OUT_OF_MEMORY;
        module->library = library;
        module->context_id = work->id;
        module->variables = calloc(library->image.variable_count + 1, sizeof(CUdeviceptr));
        module->functions = make_functions(library, module);
        if (module->variables && module->functions)
            result = load_variables(module, work);
        if (result != CUDA_SUCCESS) {
            if (module->variables)
                free_variables(module);
            free_module(module);
            return result;
        }
        module->next = library->modules;
        library->modules = module;
    }
    *found = module;
    return CUDA_SUCCESS;
}

CUresult module_open(struct CUlib_st *library, struct work_context *work, struct CUmod_st **module)
{
    CUresult result;

    pthread_mutex_lock(&lock);
    result = open_locked(library, work, module);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The library or module behind a handle of either type. Lock held. */
static struct CUlib_st *find_locked(const void *handle, struct CUmod_st **module)
{
    *module = NULL;
    for (struct CUlib_st *library = libraries; handle && library; library = library->next) {
        if (library == handle)
            return library;
        for (*module = library->modules; *module; *module = (*module)->next)
            if (*module == handle)
                return library;
    }
    return NULL;
}

struct CUlib_st *module_find_library(const void *handle)
{
    struct CUmod_st *module;
    struct CUlib_st *library;

    pthread_mutex_lock(&lock);
    library = find_locked(handle, &module);
    pthread_mutex_unlock(&lock);
    return library;
}

CUresult module_find(const void *handle, struct CUmod_st **module)
{
    struct work_context *work = current_context();
    CUresult result = CUDA_SUCCESS;
    struct CUlib_st *library;

    pthread_mutex_lock(&lock);
    library = find_locked(handle, module);
    if (!library)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!*module)
        result = work ? open_locked(library, work, module) : CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- libraries ------------------------------------------------------------------------- */

static CUresult image_result(enum image_status status)
{
    switch (status) {
    case IMAGE_OK:
        return CUDA_SUCCESS;
    case IMAGE_INVALID:
        return CUDA_ERROR_INVALID_IMAGE;
    case IMAGE_INVALID_PTX:
        return CUDA_ERROR_INVALID_PTX;
    case IMAGE_NO_BINARY:
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    case IMAGE_NO_FILE:
        return CUDA_ERROR_FILE_NOT_FOUND;
    case IMAGE_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_UNKNOWN;
}

/* Compute capability to load for, as 90 for 9.0: that of the calling thread's context, or of the
 * first device if there is none.
 */
static unsigned int target(void)
{
    struct work_context *work = current_context();
    const struct device_config *config = process_device_config(work ? work->ordinal : 0);

    return config ? config->capability_major * 10 + config->capability_minor : 0;
}

/* A cubin runs on its own major generation only, from its own minor version on. */
static bool runs_on(const struct image *image, unsigned int sm)
{
    return image->ptx_version || !image->binary_version ||
           (image->binary_version / 10 == sm / 10 && image->binary_version <= sm);
}

CUresult module_open_library(const void *data, const char *path, struct CUlib_st **opened)
{
    struct CUlib_st *library = calloc(1, sizeof(*library));
    unsigned int sm = target();
    CUresult result;

    if (!library)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = image_result(path ? image_open_file(&library->image, path, sm)
                               : image_open(&library->image, data, IMAGE_SIZE_UNKNOWN, sm));
    if (result == CUDA_SUCCESS && !runs_on(&library->image, sm))
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (result == CUDA_SUCCESS) {
        library->kernels = make_functions(library, NULL);
        if (!library->kernels)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        image_close(&library->image);
        free(library);
        return result;
    }
    pthread_mutex_lock(&lock);
    library->next = libraries;
    libraries = library;
    pthread_mutex_unlock(&lock);
    *opened = library;
    return CUDA_SUCCESS;
}

/* Remove it from the list, with its modules. Lock held. */
static void remove_library(struct CUlib_st *library, bool memory_is_there)
{
    struct CUlib_st **link = &libraries;

    while (*link != library)
        link = &(*link)->next;
    *link = library->next;
    while (library->modules) {
        struct CUmod_st *module = library->modules;

        library->modules = module->next;
        if (memory_is_there)
            free_variables(module);
        free_module(module);
    }
    free_functions(library->kernels, library->image.kernel_count);
    image_close(&library->image);
    free(library);
}

CUresult module_close_library(CUlibrary handle)
{
    struct CUmod_st *module;
    struct CUlib_st *library;

    pthread_mutex_lock(&lock);
    library = find_locked(handle, &module);
    if (library)
        remove_library(library, true);
    pthread_mutex_unlock(&lock);
    return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult module_close(CUmodule handle)
{
    struct CUmod_st *module;
    struct CUlib_st *library;

    pthread_mutex_lock(&lock);
    library = find_locked(handle, &module);
    /* The modules of a library from cuLibraryLoad* are unloaded with it, not before. */
    if (library && (library->goes_with_module || !module))
        remove_library(library, true);
    pthread_mutex_unlock(&lock);
    return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void module_forget_context(uint64_t context_id)
{
    pthread_mutex_lock(&lock);
    for (struct CUlib_st *library = libraries, *next; library; library = next) {
        struct CUmod_st **link = &library->modules;
        bool forgot = false;

        next = library->next;
        while (*link) {
            struct CUmod_st *module = *link;

            if (module->context_id != context_id) {
                link = &module->next;
                continue;
            }
            *link = module->next;
            free_module(module);
            forgot = true;
        }
        if (forgot && library->goes_with_module && !library->modules)
            remove_library(library, false);
    }
    pthread_mutex_unlock(&lock);
}

void module_answer_options(unsigned int count, CUjit_option *options, void **values)
{
    char *logs[2] = {NULL, NULL};

    if (!options || !values)
        return;
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] == CU_JIT_INFO_LOG_BUFFER)
            logs[0] = values[i];
        else if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
            logs[1] = values[i];
    }
    for (unsigned int i = 0; i < count; i++) {
        int log = options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES    ? 0
                  : options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES ? 1
                                                                     : -1;

        if (log >= 0) {
            if (logs[log] && (unsigned int) (uintptr_t) values[i] > 0)
                *logs[log] = '\0';
            values[i] = NULL; /* bytes written */
        } else if (options[i] == CU_JIT_WALL_TIME) {
            float no_time = 0;

            memcpy(&values[i], &no_time, sizeof(no_time));
        }
    }
}
