/* SPDX-License-Identifier: Apache-2.0 */
/* image.h -- reader of program images: kernels, their parameters, device variables.
 *
 * Reads cubins (ELF), PTX text and fat binaries. It only reads: nothing here compiles, links
 * or runs code, and nothing knows the CUDA API. Images are untrusted, so every byte is checked
 * before it is used: a bad image is an error, never a crash.
 */
#ifndef PYVGPU_SIMULATOR_IMAGE_IMAGE_H
#define PYVGPU_SIMULATOR_IMAGE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum image_status {
    IMAGE_OK,
    IMAGE_INVALID,     /* neither cubin, PTX nor fat binary, or a broken one */
    IMAGE_INVALID_PTX, /* PTX text that does not parse */
    IMAGE_NO_BINARY,   /* a fat binary without anything for this device */
    IMAGE_NO_FILE,
    IMAGE_NO_MEMORY,
};

struct image_parameter {
    uint32_t offset;
    uint32_t size;
};

struct image_kernel {
    char *name;
    struct image_parameter *parameters;
    uint32_t parameter_count;
    uint32_t parameter_bytes;
    uint32_t registers;      /* per thread */
    uint32_t shared_bytes;   /* static, per block */
    uint32_t local_bytes;    /* per thread */
    uint32_t constant_bytes; /* of the image, for all kernels */
    uint32_t maximum_threads;
};

struct image_variable {
    char *name;
    uint64_t bytes;
    unsigned char *initial; /* NULL: zeros */
};

struct image {
    struct image_kernel *kernels; /* sorted by name */
    size_t kernel_count;
    struct image_variable *variables; /* sorted by name */
    size_t variable_count;
    unsigned int ptx_version;    /* 94 for PTX 9.4; 0 in a cubin */
    unsigned int binary_version; /* 90 for sm_90 */
};

#define IMAGE_SIZE_UNKNOWN SIZE_MAX

/* Read the image at data. The size is IMAGE_SIZE_UNKNOWN where the caller was given only an
 * address; then nothing beyond readable memory is touched. Of a fat binary the part that
 * suits a device of compute capability sm (90 for 9.0) is read. On error the image is empty.
 */
enum image_status image_open(struct image *image, const void *data, size_t size, unsigned int sm);
enum image_status image_open_file(struct image *image, const char *path, unsigned int sm);
void image_close(struct image *image);

/* Look up by name; NULL if there is none. */
const struct image_kernel *image_find_kernel(const struct image *image, const char *name);
const struct image_variable *image_find_variable(const struct image *image, const char *name);

#endif
