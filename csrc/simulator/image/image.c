/* SPDX-License-Identifier: Apache-2.0 */
/* image.c -- detects an image's format, fetches its bytes and holds the result.
 *
 * cuModuleLoadData gets an address and no size. The size is then read from the image itself;
 * since that may be wrong, the bytes are fetched through the kernel, which returns EFAULT where a
 * plain read would crash the program.
 */
#include "parts.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PIECES = 64 };

#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC         0xba55ed50u

/* The image's source: memory of this process, perhaps of unknown size. */
struct source {
    const unsigned char *data;
    size_t size;
};

/* Copy up to count readable bytes; returns how many there were. */
static size_t fetch_unknown(unsigned char *to, const unsigned char *from, size_t count)
{
    size_t done = 0;

    while (done < count) {
        struct iovec local = {to + done, 0};
        struct iovec remote[PIECES];
        size_t pieces = 0;

        /* One piece per page: the kernel may refuse a piece as a whole. */
        for (; pieces < PIECES && done + local.iov_len < count; pieces++) {
            uintptr_t start = (uintptr_t) from + done + local.iov_len;
            size_t length = PAGE - start % PAGE;

            if (length > count - done - local.iov_len)
                length = count - done - local.iov_len;
            remote[pieces] = (struct iovec) {(void *) start, length};
            local.iov_len += length;
        }
        ssize_t got = process_vm_readv(getpid(), &local, 1, remote, pieces, 0);
        if (got < 0 && (errno == ENOSYS || errno == EPERM)) {
            memcpy(to + done, from + done, count - done); /* syscall forbidden: trust the caller */
            return count;
        }
        if (got <= 0)
            return done;
        done += (size_t) got;
    }
    return done;
}

static size_t fetch(unsigned char *to, struct source source, size_t offset, size_t count)
{
    if (source.size == IMAGE_SIZE_UNKNOWN)
        return fetch_unknown(to, source.data + offset, count);
    if (offset >= source.size)
        return 0;
    if (count > source.size - offset)
        count = source.size - offset;
    memcpy(to, source.data + offset, count);
    return count;
}

/* All of the first count bytes in memory of our own, which the caller frees. */
static enum image_status fetch_whole(struct bytes *bytes, struct source source, uint64_t count)
{
    unsigned char *copy;

    if (count > IMAGE_MAXIMUM_BYTES)
        return IMAGE_INVALID;
    copy = malloc(count + 1);
    if (!copy)
        return IMAGE_NO_MEMORY;
    if (fetch(copy, source, 0, count) != count) {
        free(copy);
        return IMAGE_INVALID;
    }
    copy[count] = '\0';
    *bytes = (struct bytes) {copy, count};
    return IMAGE_OK;
}

/* The size of the ELF at source by its own headers. */
static enum image_status measure_elf(struct source source, uint64_t *size)
{
    Elf64_Ehdr header;
    uint64_t end;

    if (fetch((unsigned char *) &header, source, 0, sizeof(header)) != sizeof(header) ||
        header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > IMAGE_MAXIMUM_BYTES)
        return IMAGE_INVALID;
    end = header.e_shoff + (uint64_t) header.e_shnum * sizeof(Elf64_Shdr);
    for (unsigned int i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        size_t at = header.e_shoff + i * sizeof(section);

        if (fetch((unsigned char *) &section, source, at, sizeof(section)) != sizeof(section) ||
            (section.sh_type != SHT_NOBITS &&
             (section.sh_offset > IMAGE_MAXIMUM_BYTES || section.sh_size > IMAGE_MAXIMUM_BYTES)))
            return IMAGE_INVALID;
        if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    *size = end;
    return IMAGE_OK;
}

static enum image_status measure_text(struct source source, uint64_t *size)
{
    unsigned char page[PAGE];

    if (source.size != IMAGE_SIZE_UNKNOWN) {
        const void *end = memchr(source.data, '\0', source.size);

        *size = end ? (size_t) ((const unsigned char *) end - source.data) : source.size;
        return IMAGE_OK;
    }
    for (*size = 0; *size < IMAGE_MAXIMUM_BYTES;) {
        size_t got = fetch(page, source, *size, sizeof(page));
        const unsigned char *end = memchr(page, '\0', got);

        if (end) {
            *size += (uint64_t) (end - page);
            return IMAGE_OK;
        }
        if (got < sizeof(page))
            return IMAGE_INVALID;
        *size += got;
    }
    return IMAGE_INVALID;
}

/* PTX starts with white space, comments or a directive. */
static bool is_text(const unsigned char *start, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((start[i] < ' ' && !strchr("\t\n\v\f\r", start[i])) || start[i] > '~')
            return false;
    return size > 0;
}

struct fatbin_head {
    uint32_t magic;
    uint16_t version;
    uint16_t header_size;
    uint64_t size; /* after the header */
};

static enum image_status read_source(struct image *image, struct source source, unsigned int sm)
{
    unsigned char start[16] = {0};
    size_t size = fetch(start, source, 0, sizeof(start));
    uint64_t whole = 0;
    uint32_t magic;
    struct bytes bytes;
    enum image_status status;

    memcpy(&magic, start, sizeof(magic));
    if (size >= sizeof(start) && magic == FATBIN_WRAPPER_MAGIC) {
        unsigned char *inner;

        memcpy(&inner, start + 8, sizeof(inner));
        source = (struct source) {inner, IMAGE_SIZE_UNKNOWN};
        size = fetch(start, source, 0, sizeof(start));
        memcpy(&magic, start, sizeof(magic));
        if (magic != FATBIN_MAGIC)
            return IMAGE_INVALID;
    }
    if (size >= SELFMAG && memcmp(start, ELFMAG, SELFMAG) == 0) {
        status = measure_elf(source, &whole);
    } else if (size >= sizeof(struct fatbin_head) && magic == FATBIN_MAGIC) {
        struct fatbin_head head;

        memcpy(&head, start, sizeof(head));
        whole = head.size <= IMAGE_MAXIMUM_BYTES ? head.header_size + head.size : UINT64_MAX;
        status = IMAGE_OK;
    } else if (is_text(start, strnlen((char *) start, size))) {
        status = measure_text(source, &whole);
        magic = 0;
    } else {
        return IMAGE_INVALID;
    }
    if (status == IMAGE_OK)
        status = fetch_whole(&bytes, source, whole);
    if (status != IMAGE_OK)
        return status;
    if (magic == FATBIN_MAGIC)
        status = fatbin_read(image, bytes, sm);
    else if (magic == 0)
        status = ptx_read(image, bytes);
    else
        status = elf_read(image, bytes);
    free((void *) bytes.data);
    return status;
}

enum image_status image_open(struct image *image, const void *data, size_t size, unsigned int sm)
{
    enum image_status status;

    *image = (struct image) {0};
    if (!data)
        return IMAGE_INVALID;
    status = read_source(image, (struct source) {data, size}, sm);
    if (status == IMAGE_OK)
        image_sort(image);
    else
        image_close(image);
    return status;
}

enum image_status image_open_file(struct image *image, const char *path, unsigned int sm)
{
    enum image_status status = IMAGE_NO_FILE;
    struct stat found;
    int file = open(path, O_RDONLY | O_CLOEXEC);

    *image = (struct image) {0};
    if (file < 0)
        return IMAGE_NO_FILE;
    if (fstat(file, &found) == 0 && S_ISREG(found.st_mode)) {
        size_t size = (size_t) found.st_size;
        size_t done = 0;
        unsigned char *data = NULL;

        status = size > IMAGE_MAXIMUM_BYTES ? IMAGE_INVALID : IMAGE_NO_MEMORY;
        if (size <= IMAGE_MAXIMUM_BYTES)
            data = malloc(size + 1);
        while (data && done < size) {
            ssize_t got = read(file, data + done, size - done);

            if (got <= 0)
                break;
            done += (size_t) got;
        }
        if (data)
            status = image_open(image, data, done, sm);
        free(data);
    }
    close(file);
    return status;
}

void image_close(struct image *image)
{
    for (size_t i = 0; i < image->kernel_count; i++) {
        free(image->kernels[i].name);
        free(image->kernels[i].parameters);
    }
    for (size_t i = 0; i < image->variable_count; i++) {
        free(image->variables[i].name);
        free(image->variables[i].initial);
    }
    free(image->kernels);
    free(image->variables);
    *image = (struct image) {0};
}

/* Grow an array that holds count items to take one more; sizes are powers of two. */
static void *grow(void *items, size_t count, size_t item_size)
{
    if (count >= IMAGE_MAXIMUM_ITEMS)
        return NULL;
    if (count & (count - 1))
        return items;
    return realloc(items, (count ? 2 * count : 1) * item_size);
}

struct image_kernel *image_add_kernel(struct image *image, const char *name, size_t length)
{
    struct image_kernel *kernels = grow(image->kernels, image->kernel_count, sizeof(*kernels));
    char *copy = strndup(name, length);

    if (kernels)
        image->kernels = kernels;
    if (!kernels || !copy) {
        free(copy);
        return NULL;
    }
    kernels[image->kernel_count] = (struct image_kernel) {.name = copy, .maximum_threads = 1024};
    return &kernels[image->kernel_count++];
}

bool image_add_variable(struct image *image, const char *name, size_t length, uint64_t size,
                        unsigned char *initial)
{
    struct image_variable *variables =
        grow(image->variables, image->variable_count, sizeof(*variables));
    char *copy = strndup(name, length);

    if (variables)
        image->variables = variables;
    if (!variables || !copy) {
        free(copy);
        free(initial);
        return false;
    }
    variables[image->variable_count++] = (struct image_variable) {copy, size, initial};
    return true;
}

bool image_add_parameter(struct image_kernel *kernel, uint32_t index, uint32_t offset,
                         uint32_t size)
{
    if (index >= IMAGE_MAXIMUM_PARAMETERS || offset > UINT16_MAX || size > UINT16_MAX)
        return false;
    if (index >= kernel->parameter_count) {
        size_t count = index + 1;
        struct image_parameter *parameters =
            realloc(kernel->parameters, count * sizeof(*parameters));

        if (!parameters)
            return false;
        memset(parameters + kernel->parameter_count, 0,
               (count - kernel->parameter_count) * sizeof(*parameters));
        kernel->parameters = parameters;
        kernel->parameter_count = (uint32_t) count;
    }
    kernel->parameters[index] = (struct image_parameter) {offset, size};
    if (offset + size > kernel->parameter_bytes)
        kernel->parameter_bytes = offset + size;
    return true;
}

static int compare_kernels(const void *left, const void *right)
{
    return strcmp(((const struct image_kernel *) left)->name,
                  ((const struct image_kernel *) right)->name);
}

static int compare_variables(const void *left, const void *right)
{
    return strcmp(((const struct image_variable *) left)->name,
                  ((const struct image_variable *) right)->name);
}

void image_sort(struct image *image)
{
    if (image->kernel_count)
        qsort(image->kernels, image->kernel_count, sizeof(*image->kernels), compare_kernels);
    if (image->variable_count)
        qsort(image->variables, image->variable_count, sizeof(*image->variables),
              compare_variables);
}

const struct image_kernel *image_find_kernel(const struct image *image, const char *name)
{
    struct image_kernel wanted = {.name = (char *) name};

    if (!image->kernel_count)
        return NULL;
    return bsearch(&wanted, image->kernels, image->kernel_count, sizeof(wanted), compare_kernels);
}

const struct image_variable *image_find_variable(const struct image *image, const char *name)
{
    struct image_variable wanted = {.name = (char *) name};

    if (!image->variable_count)
        return NULL;
    return bsearch(&wanted, image->variables, image->variable_count, sizeof(wanted),
                   compare_variables);
}
