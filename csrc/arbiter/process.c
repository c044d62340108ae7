/* SPDX-License-Identifier: Apache-2.0 */
/* process.c -- reads /proc; see process.h. */
#include "arbiter/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVER "nvidia-cuda-mps" /* -server; the kernel keeps 15 characters of a name */

/* The number behind the last tab of a line. */
static uint32_t last_number(const char *line)
{
    const char *tab = strrchr(line, '\t');

    return tab ? (uint32_t) strtoul(tab, NULL, 10) : 0;
}

static uint64_t namespace_of(uint32_t pid)
{
    char path[64], link[64];
    uint64_t number;
    ssize_t size;

    snprintf(path, sizeof(path), "/proc/%" PRIu32 "/ns/pid", pid);
    size = readlink(path, link, sizeof(link) - 1);
    if (size < 0)
        return 0;
    link[size] = '\0';
    return sscanf(link, "pid:[%" SCNu64 "]", &number) == 1 ? number : 0;
}

int process_read(uint32_t pid, struct process *process)
{
    char path[64], line[256];
    int is_server = 0;
    FILE *file;

    *process = (struct process) {0, 0};
    snprintf(path, sizeof(path), "/proc/%" PRIu32 "/status", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    while (!process->pid && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "Name:", 5) == 0)
            is_server = strstr(line, "\t" SERVER) != NULL;
        else if (strncmp(line, "NSpid:", 6) == 0)
            process->pid = last_number(line);
    }
    fclose(file);
    process->pid_namespace = namespace_of(pid);
    return process->pid && !is_server;
}
