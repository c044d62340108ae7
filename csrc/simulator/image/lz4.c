/* SPDX-License-Identifier: Apache-2.0 */
/* lz4.c -- decompressor for LZ4's block format, which fat binaries use. */
#include "parts.h"

#include <string.h>

enum { LONG_LENGTH = 15, SHORTEST_MATCH = 4 };

/* A length of 15 continues in further bytes, which are added up until one is not 255. */
static bool read_length(struct bytes packed, size_t *at, size_t *length)
{
    unsigned char more;

    if (*length != LONG_LENGTH)
        return true;
    do {
        if (*at >= packed.size)
            return false;
        more = packed.data[(*at)++];
        *length += more;
    } while (more == 255);
    return true;
}

bool lz4_expand(struct bytes packed, unsigned char *plain, size_t size)
{
    size_t at = 0;
    size_t done = 0;

    while (at < packed.size) {
        unsigned int token = packed.data[at++];
        size_t literals = token >> 4;
        size_t match = token & 15;
        size_t distance;

        if (!read_length(packed, &at, &literals) || literals > packed.size - at ||
            literals > size - done)
            return false;
        memcpy(plain + done, packed.data + at, literals);
        at += literals;
        done += literals;
        if (at == packed.size)
            break;
        if (packed.size - at < 2)
            return false;
        distance = (size_t) packed.data[at] | (size_t) packed.data[at + 1] << 8;
        at += 2;
        if (!read_length(packed, &at, &match))
            return false;
        match += SHORTEST_MATCH;
        if (distance == 0 || distance > done || match > size - done)
            return false;
        for (size_t i = 0; i < match; i++) /* byte by byte: the ranges may overlap */
            plain[done + i] = plain[done + i - distance];
        done += match;
    }
    return done == size;
}
