/* SPDX-License-Identifier: Apache-2.0 */
/* elf.c -- cubins: kernels, parameter layouts, resources and device variables of an ELF.
 *
 * Kernels are the functions of the symbol table that are marked as entries. A kernel's data is in
 * sections named after it (.text.NAME, .nv.info.NAME...); variables are objects in the sections of
 * global and constant memory, local symbols included.
 */
#include "parts.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_MACHINE = 190, ENTRY_FLAG = 0x10, ABI_WITH_WIDE_FLAGS = 8 };

/* Records of .nv.info sections: a format byte, an attribute byte, 16 bits of size or value. */
enum {
    FORMAT_SIZED = 0x04,
    INFO_MAXIMUM_THREADS = 0x05,
    INFO_FRAME_SIZE = 0x11,
    INFO_PARAMETER = 0x17,
    INFO_PARAMETER_BYTES = 0x19,
    INFO_REGISTERS = 0x2f,
};

enum { RESERVED_SHARED = 1024 }; /* system part of a block's shared memory from sm_80 */

struct elf {
    struct bytes bytes;
    uint64_t sections_at;
    unsigned int section_count;
    struct bytes section_names;
    struct bytes symbols;
    struct bytes symbol_names;
    bool reserves_shared;
};

static bool read_section(const struct elf *elf, uint64_t index, Elf64_Shdr *section)
{
    if (index >= elf->section_count)
        return false;
    memcpy(section, elf->bytes.data + elf->sections_at + index * sizeof(*section),
           sizeof(*section));
    return section->sh_type == SHT_NOBITS ||
           image_bytes_hold(elf->bytes, section->sh_offset, section->sh_size);
}

static struct bytes section_bytes(const struct elf *elf, const Elf64_Shdr *section)
{
    if (section->sh_type == SHT_NOBITS)
        return (struct bytes) {NULL, 0};
    return (struct bytes) {elf->bytes.data + section->sh_offset, section->sh_size};
}

/* The string at offset of a string table; NULL if it does not end within. */
static const char *string_at(struct bytes strings, uint64_t offset)
{
    if (offset >= strings.size || !memchr(strings.data + offset, '\0', strings.size - offset))
        return NULL;
    return (const char *) strings.data + offset;
}

static const char *section_name(const struct elf *elf, const Elf64_Shdr *section)
{
    const char *name = string_at(elf->section_names, section->sh_name);

    return name ? name : "";
}

static bool open_elf(struct elf *elf, struct image *image, struct bytes bytes)
{
    Elf64_Ehdr header;
    Elf64_Shdr section;

    if (!image_bytes_hold(bytes, 0, sizeof(header)))
        return false;
    memcpy(&header, bytes.data, sizeof(header));
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != CUDA_MACHINE ||
        header.e_shentsize != sizeof(Elf64_Shdr) ||
        !image_bytes_hold(bytes, header.e_shoff, (uint64_t) header.e_shnum * sizeof(Elf64_Shdr)))
        return false;
    *elf = (struct elf) {bytes, header.e_shoff, header.e_shnum, {0}, {0}, {0}, false};
    image->binary_version = header.e_ident[EI_ABIVERSION] >= ABI_WITH_WIDE_FLAGS
                                ? header.e_flags >> 8 & 0xff
                                : header.e_flags & 0xff;
    if (!read_section(elf, header.e_shstrndx, &section))
        return false;
    elf->section_names = section_bytes(elf, &section);
    for (unsigned int i = 0; i < elf->section_count; i++) {
        Elf64_Shdr names;

        if (!read_section(elf, i, &section))
            return false;
        if (section.sh_type == SHT_SYMTAB && !elf->symbols.data) {
            if (!read_section(elf, section.sh_link, &names))
                return false;
            elf->symbols = section_bytes(elf, &section);
            elf->symbol_names = section_bytes(elf, &names);
        }
        if (strncmp(section_name(elf, &section), ".nv.shared.reserved", 19) == 0)
            elf->reserves_shared = true;
    }
    return elf->symbols.data != NULL;
}

static bool read_symbol(const struct elf *elf, uint64_t index, Elf64_Sym *symbol, const char **name)
{
    if (index >= elf->symbols.size / sizeof(*symbol))
        return false;
    memcpy(symbol, elf->symbols.data + index * sizeof(*symbol), sizeof(*symbol));
    *name = string_at(elf->symbol_names, symbol->st_name);
    return *name != NULL;
}

static enum image_status add_variable(struct image *image, const struct elf *elf,
                                      const Elf64_Sym *symbol, const char *name)
{
    Elf64_Shdr section;
    const char *kind;
    unsigned char *initial = NULL;
    uint64_t at = symbol->st_value;

    if (symbol->st_shndx >= SHN_LORESERVE || !symbol->st_size)
        return IMAGE_OK;
    if (!read_section(elf, symbol->st_shndx, &section))
        return IMAGE_INVALID;
    kind = section_name(elf, &section);
    if (strcmp(kind, ".nv.global") != 0 && strcmp(kind, ".nv.global.init") != 0 &&
        strcmp(kind, ".nv.constant3") != 0)
        return IMAGE_OK;
    if (at >= section.sh_addr)
        at -= section.sh_addr;
    if (at > section.sh_size || symbol->st_size > section.sh_size - at)
        return IMAGE_INVALID;
    if (section.sh_type != SHT_NOBITS) {
        if (symbol->st_size > IMAGE_MAXIMUM_INITIAL)
            return IMAGE_INVALID;
        initial = malloc(symbol->st_size);
        if (!initial)
            return IMAGE_NO_MEMORY;
        memcpy(initial, section_bytes(elf, &section).data + at, symbol->st_size);
    }
    return image_add_variable(image, name, strlen(name), symbol->st_size, initial)
               ? IMAGE_OK
               : IMAGE_NO_MEMORY;
}

static enum image_status read_symbols(struct image *image, const struct elf *elf)
{
    Elf64_Sym symbol;
    const char *name;
    uint64_t count = elf->symbols.size / sizeof(symbol);

    for (uint64_t i = 0; i < count; i++) {
        enum image_status status = IMAGE_OK;

        if (!read_symbol(elf, i, &symbol, &name))
            return IMAGE_INVALID;
        if (symbol.st_shndx == SHN_UNDEF || !*name)
            continue;
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_other & ENTRY_FLAG)
            status = image_add_kernel(image, name, strlen(name)) ? IMAGE_OK : IMAGE_NO_MEMORY;
        else if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT)
            status = add_variable(image, elf, &symbol, name);
        if (status != IMAGE_OK)
            return status;
    }
    return IMAGE_OK;
}

/* The kernel that a section belongs to; NULL if its name is not prefix + a kernel's name. */
static struct image_kernel *owner(struct image *image, const char *section, const char *prefix)
{
    size_t length = strlen(prefix);

    if (strncmp(section, prefix, length) != 0)
        return NULL;
    return (struct image_kernel *) image_find_kernel(image, section + length);
}

static uint32_t word(const unsigned char *data)
{
    uint32_t value;

    memcpy(&value, data, sizeof(value));
    return value;
}

static uint32_t half(const unsigned char *data)
{
    return (uint32_t) data[0] | (uint32_t) data[1] << 8;
}

/* One record of a kernel's own section. */
static bool note_kernel(struct image_kernel *kernel, unsigned int attribute,
                        const unsigned char *data, uint32_t size)
{
    if (attribute == INFO_PARAMETER && size >= 12)
        return image_add_parameter(kernel, half(data + 4), half(data + 6), word(data + 8) >> 18);
    if (attribute == INFO_MAXIMUM_THREADS && size >= 12) {
        uint64_t threads = (uint64_t) word(data) * half(data + 4) * half(data + 8);

        if (threads > 0 && threads < kernel->maximum_threads)
            kernel->maximum_threads = (uint32_t) threads;
    }
    return true;
}

/* One record of the section about all kernels; it names a kernel by its symbol. */
static bool note_any(struct image *image, const struct elf *elf, unsigned int attribute,
                     const unsigned char *data, uint32_t size)
{
    Elf64_Sym symbol;
    const char *name;
    struct image_kernel *kernel;

    if (size < 8 || (attribute != INFO_REGISTERS && attribute != INFO_FRAME_SIZE))
        return true;
    if (!read_symbol(elf, word(data), &symbol, &name))
        return false;
    kernel = (struct image_kernel *) image_find_kernel(image, name);
    if (kernel && attribute == INFO_REGISTERS)
        kernel->registers = word(data + 4);
    else if (kernel)
        kernel->local_bytes = word(data + 4);
    return true;
}

static bool read_info(struct image *image, const struct elf *elf, struct image_kernel *kernel,
                      struct bytes records)
{
    for (size_t at = 0; at + 4 <= records.size;) {
        const unsigned char *record = records.data + at;
        uint32_t value = half(record + 2);

        at += 4;
        if (record[0] == FORMAT_SIZED) {
            if (value > records.size - at)
                return false;
            if (kernel ? !note_kernel(kernel, record[1], record + 4, value)
                       : !note_any(image, elf, record[1], record + 4, value))
                return false;
            at += value;
        } else if (kernel && record[1] == INFO_PARAMETER_BYTES) {
            kernel->parameter_bytes = value;
        }
    }
    return true;
}

static bool read_resources(struct image *image, const struct elf *elf)
{
    uint64_t constant_bytes = 0;

    for (unsigned int i = 0; i < elf->section_count; i++) {
        Elf64_Shdr section;
        const char *name;
        struct image_kernel *kernel;

        if (!read_section(elf, i, &section))
            return false;
        name = section_name(elf, &section);
        if (strcmp(name, ".nv.info") == 0 || (kernel = owner(image, name, ".nv.info.")) != NULL) {
            kernel = owner(image, name, ".nv.info.");
            if (!read_info(image, elf, kernel, section_bytes(elf, &section)))
                return false;
        } else if ((kernel = owner(image, name, ".nv.shared.")) != NULL) {
            uint64_t reserved =
                elf->reserves_shared && section.sh_size >= RESERVED_SHARED ? RESERVED_SHARED : 0;

            kernel->shared_bytes = (uint32_t) (section.sh_size - reserved);
        } else if ((kernel = owner(image, name, ".text.")) != NULL) {
            if (section.sh_info >> 24)
                kernel->registers = section.sh_info >> 24;
        } else if (strcmp(name, ".nv.constant3") == 0) {
            constant_bytes = section.sh_size;
        }
    }
    for (size_t i = 0; i < image->kernel_count; i++)
        image->kernels[i].constant_bytes = (uint32_t) constant_bytes;
    return true;
}

enum image_status elf_read(struct image *image, struct bytes bytes)
{
    struct elf elf;
    enum image_status status;

    if (!open_elf(&elf, image, bytes))
        return IMAGE_INVALID;
    status = read_symbols(image, &elf);
    if (status != IMAGE_OK)
        return status;
    image_sort(image);
    return read_resources(image, &elf) ? IMAGE_OK : IMAGE_INVALID;
}
