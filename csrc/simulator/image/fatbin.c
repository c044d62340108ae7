/* SPDX-License-Identifier: Apache-2.0 */
/* fatbin.c -- fat binaries: choose the part that suits the device, unpack it, read it.
 *
 * A cubin of the device's own generation is preferred, the newest not above it; then PTX, which a
 * driver would compile. LZ4 parts are unpacked; parts compressed in another way are skipped.
 */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

enum { PART_PTX = 1, PART_ELF = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };

struct head {
    uint32_t magic;
    uint16_t version;
    uint16_t header_size;
    uint64_t size;
};

struct part {
    uint16_t kind;
    uint16_t version;
    uint32_t header_size;
    uint64_t size; /* after the header, padding included */
    uint32_t packed_size;
    uint32_t unused[2];
    uint32_t sm;
    uint32_t name_offset;
    uint32_t name_size;
    uint64_t flags;
    uint64_t reserved;
    uint64_t plain_size;
} __attribute__((packed));

_Static_assert(sizeof(struct part) == 64, "the part's header is 64 bytes in every fat binary");

/* How well a part suits a device; 0: not at all. */
static unsigned int suitability(const struct part *part, unsigned int sm)
{
    if (part->flags & FLAG_ZSTD || part->sm > 999)
        return 0;
    if (part->kind == PART_ELF && (sm == 0 || (part->sm / 10 == sm / 10 && part->sm <= sm)))
        return 1000 + part->sm;
    if (part->kind == PART_PTX && (sm == 0 || part->sm <= sm))
        return 1 + part->sm;
    return 0;
}

static enum image_status read_part(struct image *image, const struct part *part,
                                   struct bytes content)
{
    unsigned char *plain;
    struct bytes bytes = content;
    enum image_status status = IMAGE_INVALID;

    if (part->flags & FLAG_LZ4) {
        if (part->plain_size > IMAGE_MAXIMUM_BYTES || part->packed_size > content.size)
            return IMAGE_INVALID;
        bytes.size = part->plain_size;
    }
    plain = malloc(bytes.size + 1);
    if (!plain)
        return IMAGE_NO_MEMORY;
    bytes.data = plain;
    if (!(part->flags & FLAG_LZ4))
        memcpy(plain, content.data, content.size);
    else if (!lz4_expand((struct bytes) {content.data, part->packed_size}, plain, bytes.size))
        goto out;
    if (part->kind == PART_PTX) {
        const void *end = memchr(plain, '\0', bytes.size);

        if (end)
            bytes.size = (size_t) ((const unsigned char *) end - plain);
        status = ptx_read(image, bytes);
    } else {
        status = elf_read(image, bytes);
    }
out:
    free(plain);
    return status;
}

enum image_status fatbin_read(struct image *image, struct bytes bytes, unsigned int sm)
{
    struct head head;
    struct part best = {0};
    struct bytes content = {NULL, 0};
    unsigned int best_suitability = 0;

    if (!image_bytes_hold(bytes, 0, sizeof(head)))
        return IMAGE_INVALID;
    memcpy(&head, bytes.data, sizeof(head));
    if (head.header_size < sizeof(head))
        return IMAGE_INVALID;
    for (uint64_t at = head.header_size; at < bytes.size;) {
        struct part part;

        if (!image_bytes_hold(bytes, at, sizeof(part)))
            return IMAGE_INVALID;
        memcpy(&part, bytes.data + at, sizeof(part));
        if (part.header_size < sizeof(part) || !image_bytes_hold(bytes, at, part.header_size) ||
            !image_bytes_hold(bytes, at + part.header_size, part.size))
            return IMAGE_INVALID;
        if (suitability(&part, sm) > best_suitability) {
            best_suitability = suitability(&part, sm);
            best = part;
            content = (struct bytes) {bytes.data + at + part.header_size, part.size};
        }
        at += part.header_size + part.size;
    }
    return best_suitability ? read_part(image, &best, content) : IMAGE_NO_BINARY;
}
