/* SPDX-License-Identifier: Apache-2.0 */
/* link.c -- cuLink*: several images in, one image out.
 *
 * No code is run, so nothing is linked: a single input is returned as it is; for several the output
 * is PTX text that declares the kernels and variables of all of them, which loads just as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "module.h"

enum { MAXIMUM_INPUTS = 1024 };

struct input {
    unsigned char *data;
    size_t size;
    struct image image;
};

struct CUlinkState_st {
    const void *tag;
    struct input *inputs;
    size_t input_count;
    char *output;
    size_t output_size;
};

static const char link_tag;

static bool is_link(CUlinkState state)
{
    return state && state->tag == &link_tag;
}

/* --- the text of several images -------------------------------------------------------- */

static void write_parameters(FILE *text, const struct image_kernel *kernel)
{
    uint32_t end = 0;

    for (uint32_t i = 0; i < kernel->parameter_count; i++) {
        uint32_t offset = kernel->parameters[i].offset;
        uint32_t alignment = 1;

        while (alignment < 256 && (end + alignment - 1) / alignment * alignment != offset)
            alignment *= 2;
        fprintf(text, "%s.param .align %u .b8 p%u[%u]", i ? ", " : "", (unsigned int) alignment,
                (unsigned int) i, (unsigned int) kernel->parameters[i].size);
        end = offset + kernel->parameters[i].size;
    }
}

static void write_kernel(FILE *text, const struct image_kernel *kernel)
{
    fprintf(text, ".visible .entry %s(", kernel->name);
    write_parameters(text, kernel);
    fprintf(text, ")\n.maxntid %u, 1, 1\n{\n", (unsigned int) kernel->maximum_threads);
    if (kernel->shared_bytes)
        fprintf(text, ".shared .align 16 .b8 shared[%u];\n", (unsigned int) kernel->shared_bytes);
    if (kernel->local_bytes)
        fprintf(text, ".local .align 16 .b8 local[%u];\n", (unsigned int) kernel->local_bytes);
    fputs("ret;\n}\n", text);
}

static void write_variable(FILE *text, const struct image_variable *variable)
{
    fprintf(text, ".visible .global .align 16 .b8 %s[%llu]", variable->name,
            (unsigned long long) variable->bytes);
    for (uint64_t i = 0; variable->initial && i < variable->bytes; i++)
        fprintf(text, "%s%u", i ? "," : " = {", (unsigned int) variable->initial[i]);
    fputs(variable->initial ? "};\n" : ";\n", text);
}

/* Has an earlier input the same name? */
static bool is_repeated(const struct CUlinkState_st *state, size_t input, const char *name)
{
    for (size_t i = 0; i < input; i++)
        if (image_find_kernel(&state->inputs[i].image, name) ||
            image_find_variable(&state->inputs[i].image, name))
            return true;
    return false;
}

static bool write_output(struct CUlinkState_st *state)
{
    unsigned int sm = 0;
    FILE *text = open_memstream(&state->output, &state->output_size);

    if (!text)
        return false;
    for (size_t i = 0; i < state->input_count; i++)
        if (state->inputs[i].image.binary_version > sm)
            sm = state->inputs[i].image.binary_version;
    fprintf(text, ".version 8.0\n.target sm_%u\n.address_size 64\n", sm ? sm : 50);
    for (size_t i = 0; i < state->input_count; i++) {
        const struct image *image = &state->inputs[i].image;

        for (size_t k = 0; k < image->variable_count; k++)
            if (!is_repeated(state, i, image->variables[k].name))
                write_variable(text, &image->variables[k]);
        for (size_t k = 0; k < image->kernel_count; k++)
            if (!is_repeated(state, i, image->kernels[k].name))
                write_kernel(text, &image->kernels[k]);
    }
    return fclose(text) == 0;
}

/* --- the API --------------------------------------------------------------------------- */

static CUresult create(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    REQUIRE(state);
    module_answer_options(count, options, values);
    *state = calloc(1, sizeof(**state));
    if (!*state)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*state)->tag = &link_tag;
    return CUDA_SUCCESS;
}

static bool holds_images(CUjitInputType type)
{
    return type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_PTX || type == CU_JIT_INPUT_FATBINARY;
}

/* Add the bytes and take ownership. Objects and libraries add nothing that could be called. */
static CUresult add(struct CUlinkState_st *state, CUjitInputType type, unsigned char *data,
                    size_t size)
{
    struct input *inputs;
    struct image image = {0};
    enum image_status status = IMAGE_OK;

    if (holds_images(type))
        status = image_open(&image, data, size, 0);
    inputs = status == IMAGE_OK && state->input_count < MAXIMUM_INPUTS
                 ? realloc(state->inputs, (state->input_count + 1) * sizeof(*inputs))
                 : NULL;
    if (!inputs || !holds_images(type)) {
        if (inputs)
            state->inputs = inputs;
        image_close(&image);
        free(data);
        if (inputs)
            return CUDA_SUCCESS;
        return status == IMAGE_INVALID_PTX ? CUDA_ERROR_INVALID_PTX
               : status != IMAGE_OK        ? CUDA_ERROR_INVALID_IMAGE
                                           : CUDA_ERROR_OUT_OF_MEMORY;
    }
    state->inputs = inputs;
    inputs[state->input_count++] = (struct input) {data, size, image};
    return CUDA_SUCCESS;
}

static CUresult add_data(CUlinkState state, CUjitInputType type, const void *data, size_t size)
{
    unsigned char *copy;

    if (!is_link(state))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(data && size && (unsigned int) type < CU_JIT_NUM_INPUT_TYPES);
    copy = malloc(size + 1);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, data, size);
    copy[size] = '\0';
    return add(state, type, copy, size);
}

static CUresult add_file(CUlinkState state, CUjitInputType type, const char *path)
{
    struct stat found;
    unsigned char *data = NULL;
    size_t done = 0;
    int file;

    if (!is_link(state))
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(path && (unsigned int) type < CU_JIT_NUM_INPUT_TYPES);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    if (fstat(file, &found) == 0 && S_ISREG(found.st_mode))
        data = malloc((size_t) found.st_size + 1);
    while (data && done < (size_t) found.st_size) {
        ssize_t got = read(file, data + done, (size_t) found.st_size - done);

        if (got <= 0)
            break;
        done += (size_t) got;
    }
    close(file);
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    data[done] = '\0';
    return add(state, type, data, done);
}

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
                         CUlinkState *state)
{
    ENTER();
    return create(count, options, values, state);
}

CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    ENTER();
    return create(count, options, values, state);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                          const char *name, unsigned int count, CUjit_option *options,
                          void **values)
{
    ENTER();
    (void) name;
    module_answer_options(count, options, values);
    return add_data(state, type, data, size);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
                       const char *name, unsigned int count, CUjit_option *options, void **values)
{
    ENTER();
    (void) name;
    module_answer_options(count, options, values);
    return add_data(state, type, data, size);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                          unsigned int count, CUjit_option *options, void **values)
{
    ENTER();
    module_answer_options(count, options, values);
    return add_file(state, type, path);
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                       CUjit_option *options, void **values)
{
    ENTER();
    module_answer_options(count, options, values);
    return add_file(state, type, path);
}

/* The output is the state's, until it is destroyed. */
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    ENTER();
    if (!is_link(state))
        return CUDA_ERROR_INVALID_HANDLE;
    if (state->input_count == 1) {
        if (image)
            *image = state->inputs[0].data;
        if (size)
            *size = state->inputs[0].size;
        return CUDA_SUCCESS;
    }
    if (!state->output && !write_output(state))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (image)
        *image = state->output;
    if (size)
        *size = state->output_size;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    ENTER();
    if (!is_link(state))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < state->input_count; i++) {
        image_close(&state->inputs[i].image);
        free(state->inputs[i].data);
    }
    state->tag = NULL;
    free(state->inputs);
    free(state->output);
    free(state);
    return CUDA_SUCCESS;
}
