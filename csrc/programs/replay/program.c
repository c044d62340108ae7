/* SPDX-License-Identifier: Apache-2.0 */
/* program.c -- maps a program and checks that its tables are consistent; see program.h. */
#include "programs/replay/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const void *take(const char **at, size_t size, uint32_t count)
{
    const void *table = *at;

    *at += size * count;
    return table;
}

static size_t size_of(const struct program_header *header)
{
    return sizeof(*header) + sizeof(struct program_range) * ((size_t) header->threads) +
           sizeof(struct program_range) * (size_t) header->graphs +
           sizeof(struct program_call) * (size_t) header->calls +
           sizeof(struct program_node) * (size_t) header->nodes +
           sizeof(struct program_kernel) * (size_t) header->kernels;
}

static bool fits(const struct program_range *range, uint32_t count)
{
    return range->first <= count && range->count <= count - range->first;
}

static bool is_sound(const struct program *program)
{
    const struct program_header *header = program->header;

    for (uint32_t i = 0; i < header->threads; i++)
        if (!fits(&program->threads[i], header->calls))
            return false;
    for (uint32_t i = 0; i < header->graphs; i++)
        if (!fits(&program->graphs[i], header->nodes))
            return false;
    for (uint32_t i = 0; i < header->nodes; i++)
        if (program->nodes[i].shape.kernel >= header->kernels)
            return false;
    for (uint32_t i = 0; i < header->calls; i++) {
        const struct program_call *call = &program->calls[i];
        bool event = call->kind >= PROGRAM_EVENT_SYNC && call->kind <= PROGRAM_EVENT_QUERY;

        if (call->kind >= PROGRAM_KINDS || call->stream >= header->streams ||
            (call->kind == PROGRAM_LAUNCH && call->shape.kernel >= header->kernels) ||
            (call->kind == PROGRAM_GRAPH && call->what >= header->graphs) ||
            (event && call->what >= header->events))
            return false;
        for (int j = 0; j < 2; j++)
            if (call->after[j].thread != PROGRAM_NONE && call->after[j].thread >= header->threads)
                return false;
    }
    return true;
}

int program_open(struct program *program, const char *path)
{
    const struct program_header *header = MAP_FAILED;
    struct stat status;
    const char *at;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, &status) == 0 && (size_t) status.st_size >= sizeof(*header))
        header = mmap(NULL, (size_t) status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (header == MAP_FAILED) {
        fprintf(stderr, "player: %s: %s\n", path, errno ? strerror(errno) : "too short");
        return -1;
    }
    program->header = header;
    if (header->magic == PROGRAM_MAGIC && size_of(header) == (size_t) status.st_size) {
        at = (const char *) (header + 1);
        program->threads = take(&at, sizeof(*program->threads), header->threads);
        program->graphs = take(&at, sizeof(*program->graphs), header->graphs);
        program->calls = take(&at, sizeof(*program->calls), header->calls);
        program->nodes = take(&at, sizeof(*program->nodes), header->nodes);
        program->kernels = take(&at, sizeof(*program->kernels), header->kernels);
        if (is_sound(program))
            return 0;
    }
    fprintf(stderr, "player: %s: not a whole program of this player\n", path);
    return -1;
}
