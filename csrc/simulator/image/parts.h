/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h -- helpers shared by the readers of the image formats; private to image/. */
#ifndef PYVGPU_SIMULATOR_IMAGE_PARTS_H
#define PYVGPU_SIMULATOR_IMAGE_PARTS_H

#include "image.h"

/* More than any real image has; a hostile one stops here. */
enum {
    IMAGE_MAXIMUM_ITEMS = 1 << 20,
    IMAGE_MAXIMUM_PARAMETERS = 4096,
    IMAGE_MAXIMUM_INITIAL = 1 << 28,
};
#define IMAGE_MAXIMUM_BYTES ((size_t) 1 << 30)

/* Bytes in our own memory. */
struct bytes {
    const unsigned char *data;
    size_t size;
};

/* Whether count bytes at offset lie within; cannot overflow. */
static inline bool image_bytes_hold(struct bytes bytes, uint64_t offset, uint64_t count)
{
    return offset <= bytes.size && count <= bytes.size - offset;
}

/* Fill a reader's result. The name is copied; initial is taken over. NULL, false: no memory. */
struct image_kernel *image_add_kernel(struct image *image, const char *name, size_t length);
bool image_add_variable(struct image *image, const char *name, size_t length, uint64_t size,
                        unsigned char *initial);
/* The offset says where the parameter lies, its index which it is; gaps are filled with zeros. */
bool image_add_parameter(struct image_kernel *kernel, uint32_t index, uint32_t offset,
                         uint32_t size);

/* Sort by name and drop repeated ones, so that look-ups work. */
void image_sort(struct image *image);

enum image_status elf_read(struct image *image, struct bytes bytes);
enum image_status ptx_read(struct image *image, struct bytes text);
enum image_status fatbin_read(struct image *image, struct bytes bytes, unsigned int sm);

/* Decompress LZ4's block format into exactly size bytes; false if it is broken. */
bool lz4_expand(struct bytes packed, unsigned char *plain, size_t size);

#endif
