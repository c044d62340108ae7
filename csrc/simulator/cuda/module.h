/* SPDX-License-Identifier: Apache-2.0 */
/* module.h -- loaded code: libraries, their modules in each context, functions.
 *
 * A library is an image, and belongs to no context. A module is a library in one context, with
 * its variables in that device's memory; cuModuleLoad makes both at once. Programs pass kernels
 * for functions and libraries for modules, so each look-up takes either.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_MODULE_H
#define PYVGPU_SIMULATOR_CUDA_MODULE_H

#include "image/image.h"
#include "process.h"

enum { FUNCTION_SETTINGS = 16 };

/* Behind a CUfunction and behind a CUkernel. */
struct function {
    const void *tag;
    struct launch_function launch;
    const struct image_kernel *kernel;
    struct CUlib_st *library;
    struct CUmod_st *module;         /* NULL: a kernel, of no context */
    int settings[FUNCTION_SETTINGS]; /* set by the program, by CUfunction_attribute */
    CUfunc_cache cache;
};

struct CUlib_st {
    struct image image;
    struct function *kernels; /* one for each of the image's, in its order */
    struct CUmod_st *modules;
    struct CUlib_st *next;
    bool goes_with_module; /* made by cuModuleLoad */
};

struct CUmod_st {
    struct CUlib_st *library;
    uint64_t context_id;
    CUdeviceptr *variables;     /* one for each of the image's */
    struct function *functions; /* in the order of the library's kernels */
    struct CUmod_st *next;      /* of the same library */
};

/* The function behind a handle of either type; NULL if it is none. */
struct function *module_function(const void *handle);

/* The library behind a CUlibrary or CUmodule. */
struct CUlib_st *module_find_library(const void *handle);

/* The module behind a CUmodule, or that of a CUlibrary in the calling thread's context, created if
 * it does not exist.
 */
CUresult module_find(const void *handle, struct CUmod_st **module);

/* Read an image and make a library of it. data or path is NULL. */
CUresult module_open_library(const void *data, const char *path, struct CUlib_st **library);

/* Unload. INVALID_HANDLE if it is none. */
CUresult module_close_library(CUlibrary handle);
CUresult module_close(CUmodule handle);

/* The library's module in this context, created if it does not exist. */
CUresult module_open(struct CUlib_st *library, struct work_context *work, struct CUmod_st **module);

/* A context is gone, and the memory of its modules with it. */
void module_forget_context(uint64_t context_id);

/* Fill in the output options of a load: an empty log, and no time. */
void module_answer_options(unsigned int count, CUjit_option *options, void **values);

#endif
