/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.c -- PTX text: entries with their parameters, and device variables.
 *
 * Reads the declarations at the top level and skips bodies, in which only the sizes of shared
 * and local variables matter. It is no assembler: instructions are not checked.
 */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

struct token {
    const char *start;
    size_t length; /* 0: the end */
};

struct reader {
    const char *at;
    const char *end;
    struct token token; /* the one being read */
};

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

static const char *skip_blank(const char *at, const char *end)
{
    while (at < end) {
        if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
            at++;
        } else if (end - at >= 2 && at[0] == '/' && at[1] == '/') {
            while (at < end && *at != '\n')
                at++;
        } else if (end - at >= 2 && at[0] == '/' && at[1] == '*') {
            for (at += 2; at < end && !(at[0] == '*' && end - at >= 2 && at[1] == '/'); at++)
                ;
            at = end - at >= 2 ? at + 2 : end;
        } else {
            break;
        }
    }
    return at;
}

static void advance(struct reader *reader)
{
    const char *at = skip_blank(reader->at, reader->end);
    const char *start = at;

    if (at < reader->end && *at == '"') {
        for (at++; at < reader->end && *at != '"'; at++)
            ;
        at += at < reader->end;
    } else if (at < reader->end && is_word(*at)) {
        while (at < reader->end && is_word(*at))
            at++;
    } else {
        at += at < reader->end;
    }
    reader->token = (struct token) {start, (size_t) (at - start)};
    reader->at = at;
}

static bool is(const struct reader *reader, const char *text)
{
    return reader->token.length == strlen(text) &&
           memcmp(reader->token.start, text, reader->token.length) == 0;
}

static bool at_end(const struct reader *reader)
{
    return reader->token.length == 0;
}

/* Step over text if it comes next. */
static bool accept(struct reader *reader, const char *text)
{
    if (!is(reader, text))
        return false;
    advance(reader);
    return true;
}

/* A whole number comes next; 0 if it is none. */
static uint64_t number(struct reader *reader)
{
    char text[24] = "";
    size_t length =
        reader->token.length < sizeof(text) - 1 ? reader->token.length : sizeof(text) - 1;

    memcpy(text, reader->token.start, length);
    advance(reader);
    return strtoull(text, NULL, 0);
}

/* Bytes of a fundamental type such as .f32; 0 if the token is none. */
static uint64_t type_size(const struct reader *reader)
{
    static const struct {
        const char *bits;
        uint64_t bytes;
    } sizes[] = {{"8", 1}, {"16", 2}, {"16x2", 4}, {"32", 4}, {"64", 8}, {"128", 16}};
    const struct token *token = &reader->token;

    if (token->length < 3 || token->start[0] != '.' || !strchr("usbf", token->start[1])) {
        if (is(reader, ".texref") || is(reader, ".surfref") || is(reader, ".samplerref"))
            return 8;
        return 0;
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        if (token->length == 2 + strlen(sizes[i].bits) &&
            memcmp(token->start + 2, sizes[i].bits, token->length - 2) == 0)
            return sizes[i].bytes;
    return 0;
}

/* A variable's declaration after its state space: directives, type, name, dimensions. */
struct declaration {
    struct token name;
    uint64_t element; /* bytes */
    uint64_t bytes;
    uint64_t alignment;
};

static bool read_dimensions(struct reader *reader, struct declaration *declared)
{
    while (accept(reader, "[")) {
        uint64_t count = is(reader, "]") ? 0 : number(reader);

        if (count && declared->bytes > UINT64_MAX / count)
            return false;
        declared->bytes *= count;
        if (!accept(reader, "]"))
            return false;
    }
    return true;
}

static bool read_declaration(struct reader *reader, struct declaration *declared)
{
    uint64_t vector = 1;
    bool pointer = false; /* .align after .ptr is the alignment of the target */

    *declared = (struct declaration) {.alignment = 0};
    for (; reader->token.length && reader->token.start[0] == '.';) {
        uint64_t size = type_size(reader);

        if (size)
            declared->element = size;
        if (is(reader, ".v2"))
            vector = 2;
        else if (is(reader, ".v4"))
            vector = 4;
        pointer = pointer || is(reader, ".ptr");
        if (accept(reader, ".align") || accept(reader, ".attribute")) {
            if (accept(reader, "(")) {
                while (!at_end(reader) && !accept(reader, ")"))
                    advance(reader);
            } else {
                uint64_t alignment = number(reader);

                if (!pointer)
                    declared->alignment = alignment;
            }
        } else {
            advance(reader);
        }
    }
    if (!declared->element || at_end(reader) || !is_word(*reader->token.start))
        return false;
    declared->bytes = declared->element * vector;
    if (!declared->alignment)
        declared->alignment = declared->bytes;
    if (declared->alignment > 4096 || (declared->alignment & (declared->alignment - 1)))
        return false;
    declared->name = reader->token;
    advance(reader);
    return read_dimensions(reader, declared);
}

/* One number of an initializer, as bytes at to; names and expressions leave zeros. */
static void read_element(struct reader *reader, unsigned char *to, uint64_t element)
{
    bool negative = accept(reader, "-");
    const struct token token = reader->token;
    uint64_t value;

    if (token.length > 2 && token.start[0] == '0' &&
        strchr("fFdD", token.start[1])) { /* a float by its bits */
        char digits[20] = "";
        size_t length = token.length - 2 < 16 ? token.length - 2 : 16;

        memcpy(digits, token.start + 2, length);
        advance(reader);
        value = strtoull(digits, NULL, 16);
    } else if (token.length && token.start[0] >= '0' && token.start[0] <= '9') {
        value = number(reader);
        if (negative)
            value = 0 - value;
    } else {
        return;
    }
    memcpy(to, &value, element < sizeof(value) ? element : sizeof(value));
}

/* What comes after "=": a number, or lists of them in braces. */
static bool read_initializer(struct reader *reader, const struct declaration *declared,
                             unsigned char **initial)
{
    int depth = 0;
    uint64_t at = 0;

    if (declared->bytes > IMAGE_MAXIMUM_INITIAL)
        return false;
    *initial = calloc(1, declared->bytes + 1);
    if (!*initial)
        return false;
    while (!at_end(reader) && !is(reader, ";") && (depth || !is(reader, ","))) {
        const char *before = reader->token.start;

        if (accept(reader, "{")) {
            depth++;
        } else if (accept(reader, "}")) {
            if (--depth < 0)
                return false;
        } else if (!accept(reader, ",")) {
            if (at + declared->element <= declared->bytes)
                read_element(reader, *initial + at, declared->element);
            at += declared->element;
            while (!at_end(reader) && !is(reader, ",") && !is(reader, "}") && !is(reader, ";"))
                advance(reader);
        }
        if (reader->token.start == before)
            return false;
    }
    return depth == 0;
}

/* .global and .const at the top level. */
static enum image_status read_variables(struct image *image, struct reader *reader, bool external)
{
    struct declaration declared;
    struct declaration first;

    if (!read_declaration(reader, &declared))
        return IMAGE_INVALID_PTX;
    first = declared;
    for (;;) {
        unsigned char *initial = NULL;

        if (accept(reader, "=") && !read_initializer(reader, &declared, &initial)) {
            free(initial);
            return IMAGE_INVALID_PTX;
        }
        if (external || !declared.bytes)
            free(initial);
        else if (!image_add_variable(image, declared.name.start, declared.name.length,
                                     declared.bytes, initial))
            return IMAGE_NO_MEMORY;
        if (!accept(reader, ","))
            break;
        declared.bytes = first.element;
        declared.name = reader->token;
        advance(reader);
        if (!read_dimensions(reader, &declared))
            return IMAGE_INVALID_PTX;
    }
    return accept(reader, ";") ? IMAGE_OK : IMAGE_INVALID_PTX;
}

static bool read_parameters(struct reader *reader, struct image_kernel *kernel)
{
    uint64_t offset = 0;

    for (uint32_t index = 0; !is(reader, ")"); index++) {
        struct declaration declared;

        if ((index && !accept(reader, ",")) || !accept(reader, ".param") ||
            !read_declaration(reader, &declared))
            return false;
        offset = (offset + declared.alignment - 1) & ~(declared.alignment - 1);
        if (declared.bytes > UINT16_MAX || offset > UINT16_MAX ||
            !image_add_parameter(kernel, index, (uint32_t) offset, (uint32_t) declared.bytes))
            return false;
        offset += declared.bytes;
    }
    return accept(reader, ")");
}

/* From "{" to the matching "}". Adds up what the body declares, if there is a kernel. */
static bool read_body(struct reader *reader, struct image_kernel *kernel)
{
    unsigned int depth = 0;

    do {
        bool shared = is(reader, ".shared");
        bool local = is(reader, ".local");
        bool starts = depth > 0 && (shared || local);

        if (at_end(reader))
            return false;
        depth += is(reader, "{");
        depth -= is(reader, "}");
        advance(reader);
        if (starts && kernel && type_size(reader) + is(reader, ".align") > 0) {
            struct declaration declared;

            if (!read_declaration(reader, &declared))
                return false;
            if (shared)
                kernel->shared_bytes += (uint32_t) declared.bytes;
            else
                kernel->local_bytes += (uint32_t) declared.bytes;
        }
    } while (depth > 0);
    return true;
}

static enum image_status read_entry(struct image *image, struct reader *reader)
{
    struct image_kernel *kernel;
    struct token name = reader->token;

    if (!name.length || !is_word(*name.start) || *name.start == '.')
        return IMAGE_INVALID_PTX;
    kernel = image_add_kernel(image, name.start, name.length);
    if (!kernel)
        return IMAGE_NO_MEMORY;
    advance(reader);
    if (accept(reader, "(") && !read_parameters(reader, kernel))
        return IMAGE_INVALID_PTX;
    while (!is(reader, "{")) {
        bool limits = is(reader, ".maxntid") || is(reader, ".reqntid");

        if (at_end(reader))
            return IMAGE_INVALID_PTX;
        advance(reader);
        if (limits) {
            uint64_t threads = number(reader);

            while (threads <= UINT16_MAX && accept(reader, ","))
                threads *= number(reader);
            if (threads > 0 && threads < kernel->maximum_threads)
                kernel->maximum_threads = (uint32_t) threads;
        } else if (is(reader, ";")) { /* a declaration: the body is elsewhere */
            image->kernel_count--;
            free(kernel->name);
            free(kernel->parameters);
            advance(reader);
            return IMAGE_OK;
        }
    }
    kernel->registers = 16; /* a guess: only the assembler knows */
    return read_body(reader, kernel) ? IMAGE_OK : IMAGE_INVALID_PTX;
}

/* Skip any other top-level statement: up to its ";" or over its body. */
static bool skip_statement(struct reader *reader)
{
    while (!at_end(reader)) {
        if (is(reader, "{"))
            return read_body(reader, NULL);
        if (accept(reader, ";"))
            return true;
        advance(reader);
    }
    return false;
}

/* Skip the rest of the line, for directives without a terminator. */
static void skip_line(struct reader *reader)
{
    while (reader->at < reader->end && *reader->at != '\n')
        reader->at++;
    advance(reader);
}

static enum image_status read_statement(struct image *image, struct reader *reader)
{
    bool external = false;

    while (is(reader, ".visible") || is(reader, ".extern") || is(reader, ".weak") ||
           is(reader, ".common")) {
        external = external || is(reader, ".extern");
        advance(reader);
    }
    if (accept(reader, ".entry"))
        return read_entry(image, reader);
    if (accept(reader, ".global") || accept(reader, ".const"))
        return read_variables(image, reader, external);
    if (is(reader, ".func") || is(reader, ".shared") || is(reader, ".pragma") ||
        is(reader, ".alias") || is(reader, ".tex") || is(reader, ".section"))
        return skip_statement(reader) ? IMAGE_OK : IMAGE_INVALID_PTX;
    if (is(reader, ".file") || is(reader, ".loc") || is(reader, ".address_size") ||
        is(reader, "@")) {
        skip_line(reader);
        return IMAGE_OK;
    }
    return IMAGE_INVALID_PTX;
}

/* ".version 9.4" as 94. */
static unsigned int read_version(struct reader *reader)
{
    unsigned int major = 0;
    unsigned int minor = 0;
    const struct token token = reader->token;
    size_t i = 0;

    for (; i < token.length && i < 3 && token.start[i] >= '0' && token.start[i] <= '9'; i++)
        major = major * 10 + (unsigned int) (token.start[i] - '0');
    if (i == 0 || i + 2 > token.length || token.start[i] != '.')
        return 0;
    minor = (unsigned int) (token.start[i + 1] - '0');
    advance(reader);
    return minor > 9 ? 0 : major * 10 + minor;
}

static unsigned int read_target(struct reader *reader)
{
    unsigned int sm = 0;

    if (reader->token.length > 3 && memcmp(reader->token.start, "sm_", 3) == 0)
        for (size_t i = 3; i < reader->token.length && i < 6; i++) {
            char c = reader->token.start[i];

            if (c < '0' || c > '9')
                break;
            sm = sm * 10 + (unsigned int) (c - '0');
        }
    skip_line(reader);
    return sm;
}

enum image_status ptx_read(struct image *image, struct bytes text)
{
    struct reader reader = {(const char *) text.data, (const char *) text.data + text.size, {0}};
    enum image_status status = IMAGE_OK;

    advance(&reader);
    if (!accept(&reader, ".version"))
        return IMAGE_INVALID;
    image->ptx_version = read_version(&reader);
    if (!image->ptx_version || !accept(&reader, ".target"))
        return IMAGE_INVALID_PTX;
    image->binary_version = read_target(&reader);
    if (!image->binary_version)
        return IMAGE_INVALID_PTX;
    while (status == IMAGE_OK && !at_end(&reader))
        status = read_statement(image, &reader);
    return status;
}
